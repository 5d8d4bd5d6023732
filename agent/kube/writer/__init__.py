"""Writes published objects to the API server.

A write contains only the fields that changed, and is never forced against another live writer.
"""
