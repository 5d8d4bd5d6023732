"""The Kubernetes API.

Sessions, watches, server-side apply, events. Independent of the objects that the agent writes.
"""
