"""List and watch as an explicit state machine, and what runs it."""
