"""HTTP for people and Prometheus, answered from the snapshot alone."""
