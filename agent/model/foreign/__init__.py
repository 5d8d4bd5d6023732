"""What other programs of the node write, in our terms."""
