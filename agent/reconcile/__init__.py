"""Keeping the files of pods and containers at what the hooks say, once a second."""
