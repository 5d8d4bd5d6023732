"""Programs that run on the node outside of pods: where their cgroups are, and what they use."""
