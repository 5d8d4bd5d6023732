"""MIG: GPU instances, compute instances, placements, device nodes."""
