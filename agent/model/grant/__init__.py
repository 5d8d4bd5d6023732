"""What was granted to a container and what is changed in it."""
