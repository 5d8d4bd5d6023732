"""Device allocations of pods.

They are read from annotations, checked against the node, indexed, and turned into container edits.
"""
