"""What was granted to a container, what the host has for it, and what is changed in it."""
