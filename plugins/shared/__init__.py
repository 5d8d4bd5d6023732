"""What several vendors need: loading of libraries, C structures, state files, metric families."""
