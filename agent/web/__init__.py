"""The HTTP server: status page, metrics and JSON, answered from the snapshot alone."""
