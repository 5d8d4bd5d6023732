"""Writes published objects to the API server: only what changed, never by force."""
