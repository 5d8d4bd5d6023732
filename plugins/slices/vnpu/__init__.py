"""Virtual NPUs: templates, instances, rules."""
