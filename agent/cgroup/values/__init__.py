"""What cgroup files hold: keys, values, their texts on both versions, and conversions."""
