"""The root file systems of the images, assembled and run without a container engine."""
