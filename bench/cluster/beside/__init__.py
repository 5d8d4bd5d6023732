"""What runs in processes of its own beside the agent: peers, limits, a kubelet."""
