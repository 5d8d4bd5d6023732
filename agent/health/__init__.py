"""From what vendors see to what is told of a device: hysteresis, probing, dates."""
