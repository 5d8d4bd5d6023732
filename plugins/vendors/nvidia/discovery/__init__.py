"""Discovery of NVIDIA GPUs: cards, MIG devices, NVLinks, fabric."""
