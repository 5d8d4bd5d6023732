"""Describes one card as a device: NVML's answers, sysfs where NVML does not answer."""

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
from plugins.vendors.nvidia.library import bounds, codes
from plugins.vendors.nvidia.library.card import CardUnavailable, NvmlCard
from plugins.vendors.nvidia.library.platform import PlatformInfo, platform_info
from plugins.vendors.nvidia.mig.capabilities import MigCapabilities
from plugins.vendors.nvidia.mig.instances import MigLayout, read_mig_layout

LABEL = "xpu-agent.io/"
UNIFIED_MEMORY = ("unified-memory", "true")  # a fact of cards that share the machine's memory
MIG_PENDING = "MIGModePending"
_VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
_HOSTS = (3, 4)  # the card carries virtual machines
_ADDRESSING = {1: "hmm", 2: "ats"}
_ATS = 2
MAX_MINOR = 1 << 20
MAX_MODULE = 1 << 16
MAX_NODE = 1 << 16
MAX_INDEX = 1 << 16
MAX_CAPABILITY = 999
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive-process"}


class CardDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A device, its side of the link matrix, and what its health was judged by."""

    device: VendorDevice
    links: CardLinks
    facts: health.HealthFacts
    problems: tuple[Problem, ...] = ()


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all cards of the machine."""

    host: HostFiles
    capabilities: MigCapabilities
    system_bytes: int | None = None  # the machine's memory: what cards that share it have
    is_waiting_for_ready_state: bool = False  # confidential computing waits for its word


def describe_card(
    card: NvmlCard, seen: NvidiaFunction, around: MachineFacts, before: VendorDevice | None = None
) -> CardDescription | None:
    """Ask a card everything; `None` if it stopped answering, with the reason in `card.faults`.

    What it said `before` stands in for what it cannot say for a moment.
    """
    try:
        return _describe(card, seen, around, before)
    except CardUnavailable:
        return None


def _describe(
    card: NvmlCard, seen: NvidiaFunction, around: MachineFacts, before: VendorDevice | None
) -> CardDescription:
    name = card.text("nvmlDeviceGetName")
    total, unified = _memory(card, around.system_bytes, before, seen, name)
    mig = card.flags("nvmlDeviceGetMigMode")
    virtual = card.number("nvmlDeviceGetVirtualizationMode")
    is_cut = mig is not None and mig[0] == 1
    obstacle = _obstacle(around, mig=is_cut, host=virtual in _HOSTS, total=total)
    minor = card.measure("nvmlDeviceGetMinorNumber", (0, MAX_MINOR))
    minor = minor if minor is not None else seen.minor
    model = names.model_label(name) if name else seen.model
    links = read_links(card) if not seen.platform else CardLinks()
    fabric = links.fabric.facts() if links.fabric is not None else ()
    facts = (*_facts(card, name, virtual), *_placing(card, seen), *fabric, *obstacle)
    if unified:
        facts = (*facts, UNIFIED_MEMORY)
    uuid = card.text("nvmlDeviceGetUUID") or seen.uuid or (before.uuid if before else None)
    module = card.measure("nvmlDeviceGetModuleId", (0, MAX_MODULE))
    polled = health.read_facts(card)
    cut = read_mig_layout(card, total, minor, around.capabilities) if is_cut else MigLayout()
    found = VendorDevice(
        kind=DeviceKind.GPU,
        vendor="nvidia",
        bus_id=seen.bus_id,
        uuid=uuid,
        minor=minor,
        vendor_minor=minor,
        model=model,
        memory_bytes=total,
        module_id=module,
        health=health.judge_facts(polled),
        resources=() if obstacle or not total else card_resources(total),
        labels=_labels(card, model, mig),
        facts=facts,
        nodes=_nodes(around.host, seen, minor),
        conditions=_mig_pending(mig),
        partitions=cut.partitions,
        free_slices=cut.free,
    )
    return CardDescription(device=found, links=links, facts=polled, problems=cut.problems)


def _nodes(host: HostFiles, seen: NvidiaFunction, minor: int | None) -> tuple[DeviceNode, ...]:
    if seen.platform == WSL:
        node = read_node(host, WSL_NODE)
    elif minor == seen.minor or minor is None:
        node = seen.node
    else:
        node = read_node(host, f"/dev/nvidia{minor}")
    return (node,) if node else ()


def _memory(
    card: NvmlCard,
    system_bytes: int | None,
    before: VendorDevice | None,
    seen: NvidiaFunction,
    name: str | None,
) -> tuple[int | None, bool]:
    """Return the card's memory in bytes and whether it is the machine's own.

    A card that had memory of its own keeps it. One that answers 0 shares the machine's memory only
    if it is of a kind that does.
    """
    memory = card.memory()
    if memory and memory[0]:
        return memory[0], False
    if before is not None and before.memory_bytes and UNIFIED_MEMORY not in before.facts:
        return before.memory_bytes, False
    noise = "memory total" in card.implausible
    if (
        card.faults or card.is_call_denied or card.is_call_suspended or noise
    ):  # which says nothing of its kind
        return None, False
    if memory is not None and not (seen.platform or names.is_integrated(name or "")):
        return None, False
    return system_bytes, system_bytes is not None


def _obstacle(around: MachineFacts, *, mig: bool, host: bool, total: int | None) -> Pairs:
    """Say why a card is listed without anything to grant."""
    reasons = (
        ("MIGEnabled", mig),
        ("HostVGPU", host),
        ("ConfComputeNotReady", around.is_waiting_for_ready_state),
        # the scheduler divides by the memory: never publish none
        ("MemoryUnknown", not total),
    )
    return next(((("unschedulable", reason),) for reason, holds in reasons if holds), ())


def _placing(card: NvmlCard, seen: NvidiaFunction) -> Pairs:
    """Return how the card's memory is addressed and where in a rack it is."""
    mode = card.number("nvmlDeviceGetAddressingMode")
    node = card.measure("nvmlDeviceGetNumaNodeId", (0, MAX_NODE))
    told = (
        ("platform", seen.platform or None),
        ("addressing", _ADDRESSING.get(mode if mode is not None else 0)),
        ("memory-node", str(node) if node is not None else None),
        # the kernel's page cache may be in the card's memory: figures of use are its, too
        ("memory-use", "approximate" if mode == _ATS else None),
    )
    rack = card.attempt(("platform",), lambda: platform_info(card.nvml, card.handle))
    placed = rack.facts if isinstance(rack, PlatformInfo) else ()
    return (*((key, value) for key, value in told if value), *placed)


def _labels(card: NvmlCard, model: str | None, mig: tuple[int, ...] | None) -> Pairs:
    architecture = card.number("nvmlDeviceGetArchitecture")
    capability = card.numbers("nvmlDeviceGetCudaComputeCapability") or ()
    sound = bool(capability) and 0 <= min(capability) <= max(capability) <= MAX_CAPABILITY
    told = (
        ("model", model),
        ("architecture", names.ARCHITECTURES.get(architecture or 0)),
        ("compute-capability", ".".join(map(str, capability)) if sound else None),
        ("mig", None if mig is None else "true" if mig[0] == 1 else "false"),
    )
    return tuple((LABEL + key, value) for key, value in told if value)


def _facts(card: NvmlCard, name: str | None, virtual: int | None) -> Pairs:
    ecc = card.flags("nvmlDeviceGetEccMode")
    persistence = card.measure("nvmlDeviceGetPersistenceMode", bounds.FLAG)
    mode = card.number("nvmlDeviceGetComputeMode")
    index = card.measure("nvmlDeviceGetIndex", (0, MAX_INDEX))
    told = (
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
    return tuple((key, value) for key, value in told if value)


def _switch(value: int | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _mig_pending(mig: tuple[int, ...] | None) -> tuple[DeviceCondition, ...]:
    if mig is None or mig[0] == mig[1]:
        return ()
    message = f"MIG is to be switched {_switch(mig[1])} by the next reset of the card"
    return (DeviceCondition(type=MIG_PENDING, status=True, reason=MIG_PENDING, message=message),)


def describe_silent_card(
    seen: NvidiaFunction, faults: Mapping[int, str], before: VendorDevice | None
) -> VendorDevice:
    """Describe a card that does not answer, by what was known and what sysfs shows."""
    base = before or describe_function(seen)
    # a look-up that finds nothing while sysfs has the function: the card is gone for NVML
    plain = {codes.GPU_IS_LOST if c in codes.HARMLESS else c: call for c, call in faults.items()}
    judged = health.judge_facts(health.HealthFacts(faults=plain, is_excluded=seen.is_excluded))
    if judged.state is HealthState.HEALTHY:
        told = "; ".join(f"{call}: NVML error {code}" for code, call in plain.items())
        code = next(iter(plain), codes.UNKNOWN)
        passing = code in codes.TRANSIENT or code in codes.PROCESS_UNUSABLE
        state = HealthState.SUSPECT if passing else HealthState.FAILED
        judged = Health(state=state, reason=codes.reason_of(code), message=told)
    return replace(base, health=judged)


def distinct_modules(devices: Sequence[VendorDevice]) -> tuple[VendorDevice, ...]:
    """Keep the module ids only if they tell the cards apart; PCIe cards all say the same."""
    told = [d.module_id for d in devices if d.module_id is not None]
    if len(told) == len(set(told)):
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
