"""Cambricon's MLUs."""
