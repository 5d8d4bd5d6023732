"""Which NVIDIA GPUs there are: cards, MIG devices, NVLinks, fabric."""
