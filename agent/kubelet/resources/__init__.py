"""The kubelet's pod-resources socket: asked, and served again with our grants added."""
