"""What the API server and the kubelet say of this node: frozen data and pure functions."""
