"""Where control groups are and how their files read, version 1 and 2."""
