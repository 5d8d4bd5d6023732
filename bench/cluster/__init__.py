"""What the cluster side costs, at the strict API server of the tests in a process of its own."""
