"""The agent as a citizen of a cluster: session, watches, writes and the kubelet in one place."""
