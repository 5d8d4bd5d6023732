"""The kubelet's device plug-in: which resources there are, and what an allocation gets."""
