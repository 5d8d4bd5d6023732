"""Fault codes of Ascend chips and what they mean for the health of a device."""
