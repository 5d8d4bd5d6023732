"""Who may read what an HTTP server of ours serves: TLS, client certificates, tokens, passwords."""
