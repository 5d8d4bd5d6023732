"""Strategies of a NodeSLO: pure plans of cgroup values and evictions, made once a second."""
