"""Discovery of MLUs and their links."""
