"""Scores of nodes by their load and by what pods request of them: pure functions."""
