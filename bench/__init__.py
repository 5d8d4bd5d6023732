"""Benchmarks: each compares the agent with a peer and with the physical limit in the same run."""
