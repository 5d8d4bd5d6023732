"""What runs over the runtime's socket: mux frames, and ttrpc in both directions inside them."""
