"""The wire protocol of NRI: multiplexer frames with ttrpc in both directions."""
