"""Whether running containers have what they were granted, seen from the host."""
