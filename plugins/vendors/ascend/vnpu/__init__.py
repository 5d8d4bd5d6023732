"""Virtual NPUs: templates, creation, ownership."""
