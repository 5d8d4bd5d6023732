"""Control groups, version 1 and 2.

Where they are, how their files read, and writes that can be undone.
"""
