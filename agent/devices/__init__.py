"""The health of devices over time.

Their published numbers, and the joined view of all vendors' devices.
"""
