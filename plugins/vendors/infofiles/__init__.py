"""Devices that another program of the node describes in device-info files."""
