"""The plug-in of the container runtime: its wire, its life, and what each call means."""
