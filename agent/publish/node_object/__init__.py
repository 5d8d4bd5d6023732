"""What the agent says on the Node itself, where a setting wants it: labels, and one condition."""
