"""The wire protocol of NRI: multiplexer frames, and ttrpc in both directions inside them."""
