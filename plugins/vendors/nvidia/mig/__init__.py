"""MIG: profiles, placements, instances, capabilities."""
