"""The objects that the agent publishes.

Rendered from the snapshot, and the files of standalone mode.
"""
