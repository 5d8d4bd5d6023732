"""Recorded hosts: one format for fixtures, archives and directories, and its writer."""
