"""From what publishers want to writes at the API server: changed only, coalesced, unforced."""
