"""The checkpoint of the kubelet's device manager, parsed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from agent.errors import ParseError
from agent.snapshot.device import Pairs
from agent.snapshot.device_plugin import KubeletAllocation
from agent.wire_formats.json_values import JSON_ERRORS

EXCHANGE_ANNOTATION = (
    "xpu-agent.io/exchange-"  # of an annotation: what is given for the kubelet's ids
)

MAX_CHECKPOINT_ENTRIES = 65536

MAX_CHECKPOINT_IDS = 262144  # ids of all entries together


class _PodDeviceEntry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str] | None] | list[str] | None = msgspec.field(
        name="DeviceIDs", default=None
    )
    alloc_resp: bytes | None = None  # the agent's answer, as the kubelet stores it


class _DeviceCheckpointData(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_PodDeviceEntry] | None = None


class _DeviceCheckpointFile(msgspec.Struct, rename="pascal"):
    data: _DeviceCheckpointData


def parse_device_checkpoint(
    data: bytes, *, with_nodes: bool = False
) -> tuple[KubeletAllocation, ...]:
    """Decode a checkpoint; raises `ParseError` for the whole of it if one part is invalid.

    `with_nodes` also reads the device nodes of the stored answers.

    The checksum is not checked: it is that of the kubelet's own print of a Go struct. Kubelets up
    to 1.19 list ids without their NUMA nodes.
    """
    try:
        entries = (
            msgspec.json.decode(data, type=_DeviceCheckpointFile).data.pod_device_entries or []
        )
    except JSON_ERRORS as error:
        raise ParseError(f"device checkpoint: {str(error)[:120]}", "") from error
    if len(entries) > MAX_CHECKPOINT_ENTRIES:
        raise ParseError(f"device checkpoint: more than {MAX_CHECKPOINT_ENTRIES} entries", "")
    allocations = tuple(_kubelet_allocation(entry, with_nodes=with_nodes) for entry in entries)
    if sum(len(allocation.ids) for allocation in allocations) > MAX_CHECKPOINT_IDS:
        raise ParseError(f"device checkpoint: more than {MAX_CHECKPOINT_IDS} ids", "")
    return tuple(sorted(allocations, key=lambda one: (one.pod_uid, one.container, one.resource)))


def _kubelet_allocation(entry: _PodDeviceEntry, *, with_nodes: bool) -> KubeletAllocation:
    ids = tuple(sorted(set(_entry_ids(entry.device_ids))))  # one of two nodes stands twice
    return KubeletAllocation(
        pod_uid=entry.pod_uid,
        resource=entry.resource_name,
        ids=ids,
        container=entry.container_name,
        exchanges=_parse_exchanges(entry.alloc_resp or b"", ids),
        nodes=_parse_nodes(entry.alloc_resp or b"") if with_nodes else (),
    )


def _parse_nodes(answer: bytes) -> tuple[str, ...]:
    """Return the host paths of an answer's device nodes; none of one that cannot be decoded."""
    if b"/dev/" not in answer:
        return ()
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - protobuf

    from proto.gen import deviceplugin_v1beta1_pb2 as pb  # noqa: PLC0415 - protobuf

    try:
        devices = pb.ContainerAllocateResponse.FromString(answer).devices
    except DecodeError:
        return ()
    return tuple(device.host_path for device in devices)


def _parse_exchanges(answer: bytes, ids: tuple[str, ...]) -> Pairs:
    """Return the exchanges of devices that the annotation of the agent's answer has."""
    if EXCHANGE_ANNOTATION.encode() not in answer:
        return ()
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - protobuf

    from proto.gen import deviceplugin_v1beta1_pb2 as pb  # noqa: PLC0415 - protobuf

    try:
        annotations = pb.ContainerAllocateResponse.FromString(answer).annotations
        values = [
            value for key, value in annotations.items() if key.startswith(EXCHANGE_ANNOTATION)
        ]
        tables = [msgspec.json.decode(value, type=dict[str, str]) for value in values]
    except (*JSON_ERRORS, DecodeError) as error:
        raise ParseError(f"device checkpoint: an answer of ours: {str(error)[:120]}", "") from error
    pairs = {
        name: replacement for table in tables for name, replacement in table.items() if name in ids
    }
    return tuple(sorted(pairs.items()))


def _entry_ids(entry_ids: dict[str, list[str] | None] | list[str] | None) -> Iterator[str]:
    groups: Iterable[list[str] | None] = (
        entry_ids.values() if isinstance(entry_ids, dict) else (entry_ids,)
    )
    for group in groups:
        yield from group or ()


_CHIP_ID = re.compile(r"(?:Ascend[0-9A-Z]{2,8}|npu)-([0-9]{1,4})")


def parse_chip_number(device_id: str) -> int | None:
    """Return the driver's number in the id of a whole NPU, such as `Ascend910-3`; else `None`."""
    match = _CHIP_ID.fullmatch(device_id)
    return int(match[1]) if match is not None else None
