"""How devices are spelt for others: text that an API server takes, conditions, annotations."""
