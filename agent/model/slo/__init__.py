"""NodeSLO: what a cluster asks of this node, laid over defaults field by field."""
