"""What runs in processes of its own on the node: a service, and programs that use all CPU."""
