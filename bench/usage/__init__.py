"""Control groups to measure, and the limit in C."""
