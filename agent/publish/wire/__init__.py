"""How objects are spelt for others: text an API server takes, conditions, annotations, YAML."""
