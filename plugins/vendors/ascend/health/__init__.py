"""Health of Ascend chips, derived from fault codes, polls and events."""
