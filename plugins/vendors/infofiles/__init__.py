"""Devices that somebody else describes in device-info files."""
