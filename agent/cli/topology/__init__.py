"""A host's topology as text: the tree, the matrix, and JSON for programs."""
