"""Vendor libraries in processes of their own, where they may hang or crash."""
