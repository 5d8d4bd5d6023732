"""The binding of CNDev, Cambricon's device library."""
