"""Keeps the files of pods and containers at the values that the hooks decide."""
