"""The scheduling plug-in: which devices of which node a pod gets, and why."""
