"""Commands about the agent on this node: to act on it, to check it, to undo what it did."""
