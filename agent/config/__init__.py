"""Settings: one frozen dataclass per section, unknown keys refused."""
