"""The kubelet of this node: its pods, settings and checkpoints, and its pod-resources socket."""
