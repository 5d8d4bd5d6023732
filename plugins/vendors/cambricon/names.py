"""Names of Cambricon's cards, as labels can carry them."""

from __future__ import annotations

import re

_MODELS = {20: "MLU290", 23: "MLU370", 24: "MLU365", 26: "MLU590", 30: "MLU580", 31: "MLU570"}
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+")
MAX_LABEL = 63


def model_label(name: str | None, number: int | None) -> str | None:
    """Return the model: its name, else what its number stands for, else the number itself."""
    if name:
        return _FORBIDDEN.sub("-", name)[:MAX_LABEL].strip("-_.") or None
    if number is None or number < 0:
        return None
    return _MODELS.get(number, f"MLU-{number}")


def device_id(uuid: str | None) -> str | None:
    """Return the `id` of the Device object for a UUID as the library spells it."""
    if not uuid or not re.fullmatch(r"[0-9A-Za-z-]{1,64}", uuid):
        return None
    return uuid if uuid.startswith("MLU-") else f"MLU-{uuid}"
