"""The device plug-in towards the kubelet: its folder, our registration, and our start and end."""
