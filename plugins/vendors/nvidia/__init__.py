"""NVIDIA GPUs: detected in sysfs by the agent, queried through NVML in a worker process."""
