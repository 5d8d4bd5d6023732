"""Figures of the way into containers."""
