"""NodeSLO: decoding, the overlay of its defaults, and whether it is frozen."""
