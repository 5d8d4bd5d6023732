"""Our accelerators as a device-info file, for a koordlet that publishes what it reads there."""
