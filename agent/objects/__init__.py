"""The objects that the agent publishes, rendered from the snapshot.

Also here: the files of standalone mode.
"""
