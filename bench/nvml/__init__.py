"""What asking NVML costs, on the stub."""
