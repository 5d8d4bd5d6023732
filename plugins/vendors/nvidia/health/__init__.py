"""Health of cards, derived from Xids, counters and kernel messages."""
