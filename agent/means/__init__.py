"""What this host has for containers: nodes, CDI specs, drivers; read before anybody asks."""
