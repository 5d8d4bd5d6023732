"""The edge to NVML."""
