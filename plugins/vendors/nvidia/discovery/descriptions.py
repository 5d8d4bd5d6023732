"""Describes one card as a device, from NVML's answers, else from sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.snapshot.device import (
    DeviceCondition,
    DeviceKind,
    DeviceNode,
    Health,
    HealthState,
    Pairs,
    VendorDevice,
)
from agent.snapshot.host_files import HostFiles
from agent.snapshot.inventory import Problem
from plugins.shared.resources import card_resources
from plugins.vendors.nvidia.discovery import names
from plugins.vendors.nvidia.discovery.nvlink import CardLinks, read_links
from plugins.vendors.nvidia.discovery.sysfs import (
    WSL,
    WSL_NODE,
    NvidiaFunction,
    describe_function,
    read_node,
)
from plugins.vendors.nvidia.health import card_facts as health
from plugins.vendors.nvidia.kubelet import has_mig_enabled
from plugins.vendors.nvidia.library import bounds, codes
from plugins.vendors.nvidia.library.card import CardUnavailable, NvmlCard
from plugins.vendors.nvidia.library.platform import PlatformInfo, platform_info
from plugins.vendors.nvidia.mig.capabilities import MigCapabilities
from plugins.vendors.nvidia.mig.instances import MigLayout, read_mig_layout

LABEL = "xpu-agent.io/"
UNIFIED_MEMORY = ("unified-memory", "true")  # a fact of cards that share the machine's memory
MIG_PENDING = "MIGModePending"
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
_HOSTS = (3, 4)  # modes of a card that is shared with virtual machines
_ADDRESSING = {1: "hmm", 2: "ats"}
_ATS = 2
MAX_MINOR = 1 << 20
MAX_MODULE = 1 << 16
MAX_NODE = 1 << 16
MAX_INDEX = 1 << 16
MAX_CAPABILITY = 999
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive-process"}


class CardDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A device with its links and the polled values for its health."""

    device: VendorDevice
    links: CardLinks
    facts: health.HealthFacts
    problems: tuple[Problem, ...] = ()


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are the same for all cards of the machine."""

    host: HostFiles
    capabilities: MigCapabilities
    system_bytes: int | None = None  # the machine's memory, which integrated cards share
    is_waiting_for_ready_state: bool = False  # confidential computing: cards not declared ready


def describe_card(
    card: NvmlCard,
    function: NvidiaFunction,
    machine: MachineFacts,
    before: VendorDevice | None = None,
) -> CardDescription | None:
    """Describe a card; `None` if it stopped answering, with the reason in `card.faults`.

    Values of `before` replace UUID, numbers, memory size and MIG instances if the card does not
    report them now.
    """
    try:
        return _describe(card, function, machine, before)
    except CardUnavailable:
        return None


def _describe(
    card: NvmlCard, function: NvidiaFunction, machine: MachineFacts, before: VendorDevice | None
) -> CardDescription:
    name = card.text("nvmlDeviceGetName")
    total, is_unified = _memory(card, machine.system_bytes, before, function, name)
    mig = _mig_mode(card, before)
    virtual = card.number("nvmlDeviceGetVirtualizationMode")
    if virtual is None and before is not None:
        last_mode = dict(before.facts).get("virtualization")
        virtual = next((n for n, mode in _VIRTUALIZATION.items() if mode == last_mode), None)
    is_mig_enabled = mig is not None and mig[0] == 1
    unschedulable = _unschedulable_reason(
        machine, mig=is_mig_enabled, host=virtual in _HOSTS, total=total
    )
    uuid = card.text("nvmlDeviceGetUUID") or function.uuid
    same = before if uuid and before and before.uuid == uuid else None
    minor, module = _numbers(card, function, same)
    model = names.model_label(name) if name else function.model
    links = read_links(card) if not function.platform else CardLinks()
    fabric = links.fabric.facts() if links.fabric is not None else ()
    facts = (
        *_facts(card, name, virtual),
        *_placement_facts(card, function),
        *fabric,
        *unschedulable,
    )
    if is_unified:
        facts = (*facts, UNIFIED_MEMORY)
    health_facts = health.read_facts(card)
    layout = (
        read_mig_layout(card, total, minor, machine.capabilities, before)
        if is_mig_enabled
        else MigLayout()
    )
    device = VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=function.bus_id,
        uuid=uuid or (before.uuid if before else None),
        minor=minor,
        vendor_minor=minor,
        model=model,
        memory_bytes=total,
        module_id=module,
        health=health.judge_facts(health_facts),
        resources=() if unschedulable or not total else card_resources(total),
        labels=_labels(card, model, mig),
        facts=facts,
        nodes=_nodes(machine.host, function, minor),
        conditions=_mig_pending(mig),
        partitions=layout.partitions,
        free_slices=layout.free,
    )
    return CardDescription(device=device, links=links, facts=health_facts, problems=layout.problems)


def _numbers(
    card: NvmlCard, function: NvidiaFunction, before: VendorDevice | None
) -> tuple[int | None, int | None]:
    """Return the driver's number and the module id; `before` is the same card, by its UUID."""
    minor = card.measure("nvmlDeviceGetMinorNumber", (0, MAX_MINOR))
    module = card.measure("nvmlDeviceGetModuleId", (0, MAX_MODULE))
    if minor is None:
        minor = function.minor
    if before is not None:
        minor = before.vendor_minor if minor is None else minor
        module = before.module_id if module is None else module
    return minor, module


def _mig_mode(card: NvmlCard, before: VendorDevice | None) -> tuple[int, ...] | None:
    """Return the present and the pending mode; a card whose mode cannot be read stays divided.

    As a whole it would be allocated beside its instances. When a worker has just started, `before`
    has only what is stored: a card with memory and without resources was not whole.
    """
    name = "nvmlDeviceGetMigMode"
    mode = card.flags(name)
    if mode is not None or before is None or card.is_unsupported(name):
        return mode
    was_whole = bool(before.resources) or not before.memory_bytes
    return (1, 1) if has_mig_enabled(before) or not was_whole else None


def _nodes(host: HostFiles, function: NvidiaFunction, minor: int | None) -> tuple[DeviceNode, ...]:
    if function.platform == WSL:
        node = read_node(host, WSL_NODE)
    elif minor == function.minor or minor is None:
        node = function.node
    else:
        node = read_node(host, f"/dev/nvidia{minor}")
    return (node,) if node else ()


def _memory(
    card: NvmlCard,
    system_bytes: int | None,
    before: VendorDevice | None,
    function: NvidiaFunction,
    name: str | None,
) -> tuple[int | None, bool]:
    """Return the card's memory in bytes and whether it is the machine's memory.

    A card that had its own memory before keeps that size. A card that reports 0 shares the
    machine's memory only if its model or platform does so.
    """
    memory = card.memory()
    if memory and memory.total:
        return memory.total, False
    if before is not None and before.memory_bytes and UNIFIED_MEMORY not in before.facts:
        return before.memory_bytes, False
    is_implausible = "memory total" in card.implausible
    if (
        card.faults or card.is_call_denied or card.is_call_suspended or is_implausible
    ):  # the kind is unknown
        return None, False
    if memory is not None and not (function.platform or names.is_integrated(name or "")):
        return None, False
    return system_bytes, system_bytes is not None


def _unschedulable_reason(
    machine: MachineFacts, *, mig: bool, host: bool, total: int | None
) -> Pairs:
    """Return the reason why a card is listed without resources; empty if there is none."""
    reasons = (
        ("MIGEnabled", mig),
        ("HostVGPU", host),
        ("ConfComputeNotReady", machine.is_waiting_for_ready_state),
        # the scheduler divides by the memory, so it must not be 0
        ("MemoryUnknown", not total),
    )
    return next(((("unschedulable", reason),) for reason, holds in reasons if holds), ())


def _placement_facts(card: NvmlCard, function: NvidiaFunction) -> Pairs:
    """Return the addressing mode of the card's memory and the card's place in its rack."""
    mode = card.number("nvmlDeviceGetAddressingMode")
    node = card.measure("nvmlDeviceGetNumaNodeId", (0, MAX_NODE))
    facts = (
        ("platform", function.platform or None),
        ("addressing", _ADDRESSING.get(mode if mode is not None else 0)),
        ("memory-node", str(node) if node is not None else None),
        # with ATS, memory in use includes page cache of the kernel
        ("memory-use", "approximate" if mode == _ATS else None),
    )
    rack = card.attempt(("platform",), lambda: platform_info(card.nvml, card.handle))
    rack_facts = rack.facts if isinstance(rack, PlatformInfo) else ()
    return (*((key, value) for key, value in facts if value), *rack_facts)


def _labels(card: NvmlCard, model: str | None, mig: tuple[int, ...] | None) -> Pairs:
    architecture = card.number("nvmlDeviceGetArchitecture")
    capability = card.numbers("nvmlDeviceGetCudaComputeCapability") or ()
    is_plausible = bool(capability) and 0 <= min(capability) <= max(capability) <= MAX_CAPABILITY
    labels = (
        ("model", model),
        ("architecture", names.ARCHITECTURES.get(architecture or 0)),
        ("compute-capability", ".".join(map(str, capability)) if is_plausible else None),
        ("mig", None if mig is None else "true" if mig[0] == 1 else "false"),
    )
    return tuple((LABEL + key, value) for key, value in labels if value)


def _facts(card: NvmlCard, name: str | None, virtual: int | None) -> Pairs:
    ecc = card.flags("nvmlDeviceGetEccMode")
    persistence = card.measure("nvmlDeviceGetPersistenceMode", bounds.FLAG)
    mode = card.number("nvmlDeviceGetComputeMode")
    index = card.measure("nvmlDeviceGetIndex", (0, MAX_INDEX))
    facts = (
        ("driver", "nvidia"),
        ("name", name),
        ("index", str(index) if index is not None else None),
        ("serial", card.text("nvmlDeviceGetSerial")),
        ("vbios", card.text("nvmlDeviceGetVbiosVersion")),
        ("ecc", _switch(ecc[0] if ecc else None)),
        ("persistence", _switch(persistence)),
        ("compute-mode", _COMPUTE_MODES.get(mode if mode is not None else -1)),
        ("virtualization", _VIRTUALIZATION.get(virtual if virtual is not None else -1)),
    )
    return tuple((key, value) for key, value in facts if value)


def _switch(value: int | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _mig_pending(mig: tuple[int, ...] | None) -> tuple[DeviceCondition, ...]:
    if mig is None or mig[0] == mig[1]:
        return ()
    message = f"MIG is to be switched {_switch(mig[1])} by the next reset of the card"
    return (DeviceCondition(type=MIG_PENDING, status=True, reason=MIG_PENDING, message=message),)


def describe_silent_card(
    function: NvidiaFunction, faults: Mapping[int, str], before: VendorDevice | None
) -> VendorDevice:
    """Describe a card that does not answer, from its last description or from sysfs."""
    base = before or describe_function(function)
    # sysfs has the function but NVML does not find it: NVML has lost the card
    card_faults = {
        codes.GPU_IS_LOST if c in codes.HARMLESS else c: call for c, call in faults.items()
    }
    result = health.judge_facts(
        health.HealthFacts(faults=card_faults, is_excluded=function.is_excluded)
    )
    if result.state is HealthState.HEALTHY:
        message = "; ".join(f"{call}: NVML error {code}" for code, call in card_faults.items())
        code = next(iter(card_faults), codes.UNKNOWN)
        is_transient = code in codes.TRANSIENT or code in codes.PROCESS_UNUSABLE
        state = HealthState.SUSPECT if is_transient else HealthState.FAILED
        result = Health(state=state, reason=codes.reason_of(code), message=message)
    return replace(base, health=result)


def distinct_modules(devices: Sequence[VendorDevice]) -> tuple[VendorDevice, ...]:
    """Remove the module ids unless they are unique; PCIe cards all report the same one."""
    module_ids = [d.module_id for d in devices if d.module_id is not None]
    if len(module_ids) == len(set(module_ids)):
        return tuple(devices)
    return tuple(replace(d, module_id=None) for d in devices)


def memory_total(meminfo: str) -> int | None:
    """Return MemTotal of `/proc/meminfo` in bytes."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        amount = rest.split()
        if name == "MemTotal" and amount and amount[0].isdecimal() and len(amount[0]) < 16:
            return int(amount[0]) * 1024 or None
    return None
