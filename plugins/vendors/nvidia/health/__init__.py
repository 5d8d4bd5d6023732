"""Xids, counters and kernel messages, and what they mean for the health of a card."""
