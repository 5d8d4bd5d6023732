"""The maker's tool in place of its library: slower and poorer, but better than no answer."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

import msgspec

from agent.errors import AgentError, ParseError
from agent.host.files import HostFiles
from agent.model.device import DeviceKind, Health, HealthState, VendorDevice
from agent.model.inventory import Inventory, Problem
from agent.model.quantity import binary
from plugins.bindings.locate import LibraryAbsent, refuse_untrusted
from plugins.vendors.cambricon.cnmon import (
    Detail,
    Listed,
    address_of,
    parse_detail,
    parse_table,
)
from plugins.vendors.cambricon.names import device_id, model_label
from plugins.vendors.cambricon.sight import device, node

TOOL = "/usr/bin/cnmon"
DEADLINE_S = 8.0  # for all that is asked in one discovery
MAX_OUTPUT = 1 << 20


class ToolFailed(AgentError):
    """The tool did not answer in time, or said that it failed."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One card as the tool knows it."""

    listed: Listed
    detail: Detail


def ask(settings: Mapping[str, object]) -> tuple[Told, ...]:
    """Return the cards; none if there is no tool, or it is of no use."""
    root = str(settings.get("driver_root") or "/").rstrip("/")
    path = root + TOOL
    until_s = time.monotonic() + DEADLINE_S
    try:
        if not os.access(path, os.X_OK):
            return ()
        refuse_untrusted(os.path.realpath(path))
        listed = parse_table(_run([path], until_s))
    except (LibraryAbsent, ToolFailed, ParseError):
        return ()
    return tuple(Told(listed=card, detail=_detail(path, card.index, until_s)) for card in listed)


def _detail(path: str, index: int, until_s: float) -> Detail:
    try:
        return parse_detail(_run([path, "info", "-c", str(index)], until_s))
    except ToolFailed:
        return Detail()


def _run(command: Sequence[str], until_s: float) -> str:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise ToolFailed(f"{command[0]}: no time left")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=left_s, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolFailed(f"{command[0]}: {str(error)[:100]}") from error
    return done.stdout[:MAX_OUTPUT].decode("utf-8", "replace")


def inventory(
    told: Sequence[Told], host: HostFiles, functions: Sequence[str], problem: Problem
) -> Inventory:
    """Return what the tool knows; functions that it does not list are told by sysfs alone."""
    known = frozenset(functions)
    found = [_device(card, host, known) for card in told]
    listed = {device.bus_id for device in found}
    rest = [b for b in functions if b not in listed][: max(0, len(functions) - len(found))]
    silent = (device(b, problem.reason, problem.message, HealthState.FAILED) for b in rest)
    remark = Problem(reason="ToolOnly", message=f"{TOOL} is asked instead of the library")
    return Inventory(
        vendor="cambricon",
        devices=(*found, *silent),
        driver_version=next((c.listed.driver for c in told if c.listed.driver), None),
        problems=(problem, remark),
    )


def _device(card: Told, host: HostFiles, known: frozenset[str]) -> VendorDevice:
    listed, detail = card.listed, card.detail
    address = address_of(detail.address, known) if detail.address else None
    total = listed.memory_bytes or detail.memory_bytes
    model = model_label(listed.model, None)
    return VendorDevice(
        kind=DeviceKind.MLU,
        vendor="cambricon",
        bus_id=listed.bus_id or address,
        uuid=device_id(detail.uuid),
        minor=listed.index,
        vendor_minor=listed.index,
        model=model,
        memory_bytes=total,
        health=_health(detail),
        resources=(
            ("koordinator.sh/gpu-core", "100"),
            ("koordinator.sh/gpu-memory", binary(total)),
            ("koordinator.sh/gpu-memory-ratio", "100"),
        )
        if total
        else (),
        labels=(("xpu-agent.io/model", model),) if model else (),
        facts=() if total else (("unschedulable", "MemoryUnknown"),),
        nodes=node(host, f"/dev/cambricon_dev{listed.index}"),
    )


def _health(detail: Detail) -> Health:
    if detail.good is False:
        told = f"{TOOL} does not call the card good"
        return Health(state=HealthState.FAILED, reason="DeviceInProblem", message=told)
    if detail.good is None:
        told = f"{TOOL} does not say how the card is"
        return Health(state=HealthState.SUSPECT, reason="DriverError", message=told)
    return Health()
