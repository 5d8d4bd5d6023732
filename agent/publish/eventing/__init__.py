"""Kubernetes events: counted, limited, kept while the API server is away."""
