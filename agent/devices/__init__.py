"""The devices of all vendors: their health over time, published minors and joined view."""
