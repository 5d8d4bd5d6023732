"""What the daemon does because somebody says so: the kernel, or a person at the admin socket."""
