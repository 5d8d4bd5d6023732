"""The Kubernetes API from below: one session, watches, writes. Knows no object of ours."""
