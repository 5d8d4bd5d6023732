"""Access to an HTTP server of ours: TLS, certificates, tokens, passwords, bounded connections."""
