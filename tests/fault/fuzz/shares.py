"""How many inputs each decoder is given in one run; most where anybody can write them."""

from __future__ import annotations

SHARES = {
    "wire": 100_000,
    "lists": 6_000,
    "device-allocated": 100_000,
    "resource-status": 20_000,
    "extended-resource-spec": 20_000,
    "oom-score-adj-spec": 4_000,
    "resctrl": 4_000,
    "pod": 8_000,
    "device checkpoint": 5_000,
    "kept devices": 3_000,
    "container record": 5_000,
    "cdi": 4_000,
    "process": 6_000,
}
