"""Hardware that comes and goes: the kernel's events, and when to look because of them."""
