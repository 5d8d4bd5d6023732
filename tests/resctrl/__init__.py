"""The resctrl file system of a kernel, emulated, and the session that a kernel answered."""
