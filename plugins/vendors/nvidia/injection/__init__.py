"""NVIDIA devices in containers: whole cards, MIG devices, HAMi-core and MPS."""
