"""The NRI plug-in of the container runtime."""
