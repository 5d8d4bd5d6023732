"""One authenticated session with the API server: credentials, deadlines, typed failures."""
