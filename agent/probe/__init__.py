"""Vendor libraries in processes of their own: they may hang, die or lie there."""
