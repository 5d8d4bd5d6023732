"""What is told and measured of the way into containers."""
