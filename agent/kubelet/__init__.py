"""The kubelet of this node: its pods, settings, checkpoints and pod-resources socket."""
