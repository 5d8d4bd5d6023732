"""Runs vendor libraries in child processes, where they may hang or crash."""
