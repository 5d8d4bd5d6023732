"""The annotations that a binding writes for a pod's devices: Koordinator's, and those of vendors.

Vendors' own device plug-ins read theirs when the agent does not serve the kubelet; formats are
those of Koordinator's `deviceshare/device_plugin_adapter.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.wire_formats.device_allocated import ANNOTATION
from agent.wire_formats.json_values import JsonDict, compact_json
from agent.wire_formats.quantities import format_binary
from plugins.scheduler.devices.allocator import DeviceChoice, DeviceChoices, NodeRefused
from plugins.scheduler.devices.device_table import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    KINDS,
    MODEL_LABEL,
    VENDOR_LABEL,
    Labels,
)
from plugins.scheduler.devices.requests import ISOLATION_LABEL, NPU_CORE
from plugins.scheduler.devices.vendor_limits import VENDOR_LIMITS, vendor_refusal

BIND_TIMESTAMP = "scheduling.koordinator.sh/bind-timestamp"
GPU_MINORS = "scheduling.koordinator.sh/gpu-minors"
HAMI_NODE_LABEL = "hami.io/vgpu-node"
DUO_MODEL = "Ascend-310P3-300I-DUO"


def allocation_text(choices: DeviceChoices) -> str:
    """Return the value of `device-allocated`."""
    by_kind: dict[str, list[JsonDict]] = {}
    for kind in KINDS:
        entries = [_entry(one) for one in choices if one.device.kind == kind]
        if entries:
            by_kind[kind] = entries
    return compact_json(by_kind, sort_keys=False)


def _entry(choice: DeviceChoice) -> JsonDict:
    entry: JsonDict = {
        "minor": choice.device.minor,
        "resources": {
            name: format_binary(amount) if name == GPU_MEMORY else str(amount)
            for name, amount in sorted(choice.amounts.items())
        },
    }
    if choice.device.id:
        entry["id"] = choice.device.id
    extension: JsonDict = {}
    if choice.function is not None:
        function: JsonDict = {"busID": choice.function.bus_id}
        if choice.function.minor:  # 0 is left out, as Go does
            function = {"minor": choice.function.minor, **function}
        extension["vfs"] = [function]
    if choice.template:
        extension["gpuSharedResourceTemplate"] = choice.template
    if extension:
        entry["extension"] = extension
    return entry


class BindingMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The annotations and labels of a pod, and the locks that its node needs before them."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str] = {}
    node_locks: tuple[str, ...] = ()  # annotations of the node


def allocation_metadata(choices: DeviceChoices) -> BindingMetadata:
    """Return the annotation of an allocation; empty for a pod whose devices the kubelet chooses."""
    return BindingMetadata(annotations={ANNOTATION: allocation_text(choices)} if choices else {})


def vendor_metadata(
    choices: DeviceChoices, node: str, node_labels: Labels, pod_labels: Labels, now_ns: int
) -> BindingMetadata:
    """Return what the vendor's plug-in reads; raises `NodeRefused` if it cannot serve the pod.

    `now_ns` are Unix nanoseconds.
    """
    cards = [one for one in choices if one.device.kind == GPU]
    annotations = {BIND_TIMESTAMP: str(now_ns)} if choices else {}
    labels: dict[str, str] = {}
    locks: tuple[str, ...] = ()
    if cards:
        annotations[GPU_MINORS] = ",".join(str(card.device.minor) for card in cards)
        if pod_labels.get(ISOLATION_LABEL) == "HAMi-core":
            labels[HAMI_NODE_LABEL] = node
        vendor = node_labels.get(VENDOR_LABEL, "")
        for card in cards:
            if reason := vendor_refusal(vendor, len(cards), card.amounts):
                raise NodeRefused(reason, is_final=True)
        if vendor == "huawei":
            annotations |= _huawei(cards, node_labels.get(MODEL_LABEL, ""), now_ns)
        elif vendor == "cambricon":
            annotations |= _cambricon(cards)
            locks = ("cambricon.com/dsmlu.lock",)
        elif vendor == "metax":
            annotations |= _metax(cards)
            locks = ("hami.io/mutex.lock",)
    return BindingMetadata(annotations=annotations, labels=labels, node_locks=locks)


def _huawei(cards: Iterable[DeviceChoice], model: str, now_ns: int) -> dict[str, str]:
    if model == DUO_MODEL:
        names = ",".join(f"Ascend310P-{card.device.minor}" for card in cards)
        return {"predicate-time": str(now_ns), "huawei.com/Ascend310P": names}
    names = ",".join(
        f"{card.device.minor}-{card.template}" if card.template else str(card.device.minor)
        for card in cards
    )
    return {"predicate-time": str(now_ns), NPU_CORE: names}


def _cambricon(cards: list[DeviceChoice]) -> dict[str, str]:
    core, memory = _core_and_memory(cards[0], "cambricon")
    profile = f"{cards[0].device.minor}_{core}_{memory}"
    return {"CAMBRICON_DSMLU_ASSIGHED": "false", "CAMBRICON_DSMLU_PROFILE": profile}


def _metax(cards: Iterable[DeviceChoice]) -> dict[str, str]:
    entries = []
    for card in cards:
        core, memory = _core_and_memory(card, "metax")
        entries.append({"uuid": card.device.id, "compute": core, "vRam": memory})
    return {"metax-tech.com/gpu-devices-allocated": compact_json([entries], sort_keys=False)}


def _core_and_memory(card: DeviceChoice, vendor: str) -> tuple[int, int]:
    """Return core percent, and memory in units of the vendor."""
    return card.amounts[GPU_CORE], card.amounts[GPU_MEMORY] // VENDOR_LIMITS[vendor].unit_bytes
