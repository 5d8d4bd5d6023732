"""CDI specifications of our devices: what is in them, and the files."""
