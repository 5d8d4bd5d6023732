"""The HTTP extender: kube-scheduler's calls, bindings, watches and leader election."""
