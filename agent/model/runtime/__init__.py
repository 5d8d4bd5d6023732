"""Pods and containers as the runtime shows them, and what is changed in them."""
