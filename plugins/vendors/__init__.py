"""The device vendors that come with the agent."""
