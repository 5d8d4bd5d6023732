"""Which of the free devices are best granted together."""
