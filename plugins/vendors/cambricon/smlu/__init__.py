"""Slices of MLUs: sMLU and MIM."""
