"""Device allocations of pods.

Read, checked against the node, indexed, and turned into what a container gets.
"""
