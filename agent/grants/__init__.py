"""Which pod was granted what, checked against the devices and all other grants. Pure."""
