"""Hardware slices of cards: what there is, what still fits, which device files they need."""
