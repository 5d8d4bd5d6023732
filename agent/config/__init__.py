"""Settings of the agent: their structs, the decoder, and where each value comes from."""
