"""What enforcement costs, and what it does on this machine's own kernel."""
