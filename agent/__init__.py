"""The node agent: reads the machine, keeps one immutable picture of it, publishes and acts."""
