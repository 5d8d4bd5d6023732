"""Impacts that the entries of several vendors share."""

from __future__ import annotations

OUT_OF_SERVICE = (
    "The scheduler and the kubelet give the device to no new pod; running pods keep it."
)
STAYS_IN_SERVICE = "The device stays in service."
NOT_PUBLISHED = "The device is listed and not published: the scheduler does not know it."
NOT_WHOLE = "The device is not whole: amounts and identity are missing until the answer."
FACTS_MISSING = "Facts of the device are missing."
EVENT_ONLY = "None: it is an event only."
