"""Recorded hosts: one format for fixtures, archives and directories, and how one is made."""
