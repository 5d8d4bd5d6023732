"""NVIDIA GPUs: seen in sysfs by the agent, asked through NVML in a process of their own."""
