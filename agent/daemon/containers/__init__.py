"""The agent's way into containers: the runtime, the kubelet's plug-in, proof."""
