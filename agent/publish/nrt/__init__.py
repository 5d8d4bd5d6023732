"""What a NodeResourceTopology object says, and how it lives with what others say in it."""
