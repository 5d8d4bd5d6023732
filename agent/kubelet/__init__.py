"""The kubelet of this node: its pods, its settings, its checkpoints, its grants."""
