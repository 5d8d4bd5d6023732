"""`kubelet_internal_checkpoint`, written as by the kubelet: beside, then moved into place."""

from __future__ import annotations

import base64
import json
import os
import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from proto.gen import deviceplugin_v1beta1_pb2 as pb

NAME = "kubelet_internal_checkpoint"


@dataclass(slots=True)
class Allocation:
    """What one container has of one resource."""

    pod_uid: str
    container: str
    resource: str
    ids: dict[str, frozenset[int]]  # with their NUMA nodes
    response: pb.ContainerAllocateResponse = field(default_factory=pb.ContainerAllocateResponse)


def write(
    folder: Path, allocations: Iterable[Allocation], registered: Mapping[str, Iterable[str]]
) -> None:
    """Write all allocations and the healthy devices of every resource."""
    data = {
        # `null` when there are none
        "PodDeviceEntries": [
            {
                "PodUID": allocation.pod_uid,
                "ContainerName": allocation.container,
                "ResourceName": allocation.resource,
                "DeviceIDs": _by_node(allocation.ids),
                "AllocResp": base64.b64encode(allocation.response.SerializeToString()).decode(),
            }
            for allocation in allocations
        ]
        or None,
        "RegisteredDevices": {name: sorted(ids) for name, ids in registered.items()},
    }
    text = json.dumps({"Data": data, "Checksum": zlib.adler32(repr(data).encode())})
    aside = folder / f".{random.randrange(10**10)}"
    aside.write_text(text)
    os.replace(aside, folder / NAME)


def _by_node(ids: Mapping[str, frozenset[int]]) -> dict[str, list[str]]:
    nodes: dict[str, list[str]] = {}
    for name, on in sorted(ids.items()):
        for node in sorted(on) or [-1]:
            nodes.setdefault(str(node), []).append(name)
    return nodes
