"""What containers' processes have instead of their cgroups: scores and cookies."""
