"""The binding of NVML, NVIDIA's device library."""
