"""Plain types: the state of the node at one moment."""
