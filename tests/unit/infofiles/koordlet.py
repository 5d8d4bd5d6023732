"""What koordlet makes of device-info files: its rules, checked against its recorded answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent.wire_formats.quantities import parse_quantity

_BARE = ("gpu-core", "gpu-memory")


def koordlet_device(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return labels, annotations and devices as koordlet publishes them."""
    labels: dict[str, str] = {}
    if entries:
        first = entries[0]
        labels = {
            "node.koordinator.sh/gpu-vendor": first["vendor"],
            "node.koordinator.sh/gpu-model": first["model"],
        }
        if "p2pLinks" in first.get("topology", {}):
            honor = first["topology"].get("mustHonorPartition")
            labels["node.koordinator.sh/gpu-partition-policy"] = "Honor" if honor else "Prefer"
    table = _table(entries)
    name = "scheduling.koordinator.sh/gpu-partitions"
    annotations = {name: json.dumps(table, separators=(",", ":"))} if table else {}
    devices = sorted((_device(entry) for entry in entries), key=lambda d: d["minor"])
    return {
        "labels": labels,
        "annotations": annotations,
        "spec": {"devices": devices} if devices else {},
    }


def _table(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    result: dict[tuple[int, ...], str] = {}
    for entry in entries:
        for link in entry.get("topology", {}).get("p2pLinks", []):
            if link["peerMinor"] and link["type"]:
                minors = {int(entry["minor"]), *map(int, link["peerMinor"].split(","))}
                result.setdefault(tuple(sorted(minors)), link["type"])
    table: dict[str, list[dict[str, Any]]] = {}
    for members, kind in sorted(result.items(), key=lambda item: (len(item[0]), item[0])):
        row = {"minors": list(members), "gpuLinkType": kind, "allocationScore": 1}
        table.setdefault(str(len(members)), []).append(row)
    return table


def _device(entry: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": "gpu",
        "id": entry["uuid"],
        "minor": int(entry["minor"]) if entry["minor"].isdecimal() else 0,
        "health": True,
        "resources": {"koordinator.sh/gpu-memory-ratio": "100"},
    }
    for name, text in entry["resources"].items():
        amount = parse_quantity(text)
        assert amount is not None
        result["resources"][f"koordinator.sh/{name}" if name in _BARE else name] = amount.text
    if (topology := entry.get("topology")) is not None:
        place = {"socketID": -1, "nodeID": int(topology["nodeID"] or -1)}
        result["topology"] = place | {"pcieID": topology["pcieID"]}
        if topology["busID"]:
            result["topology"]["busID"] = topology["busID"]
    if (status := entry.get("status")) is not None:
        result["health"] = status["healthy"]
        reason, message = "DeviceHealthy", "device is healthy"
        if not status["healthy"]:
            reason = status.get("errCode") or "Unknown"
            message = status.get("errMessage") or "device is unhealthy"
        result["conditions"] = [
            {
                "type": "Healthy",
                "status": "True" if status["healthy"] else "False",
                "reason": reason,
                "message": message,
                "lastTransitionTime": "T",
            }
        ]
    return result
