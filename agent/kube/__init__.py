"""The Kubernetes API: sessions, watches, server-side apply, events.

This package does not know the objects that the agent writes.
"""
