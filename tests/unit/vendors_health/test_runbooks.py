"""Each reason for which a device is out of service or in doubt has an entry of its vendor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.runbook.entry import RecommendedAction, RunbookEntry
from agent.workers.abilities import find_vendor_runbook
from agent.workers.load import load_vendors
from plugins.vendors.cambricon import health
from plugins.vendors.nvidia.health import card_facts, causes, xid
from plugins.vendors.nvidia.library import codes
from plugins.vendors.rdma.health import kernel_log, ports

VENDORS = load_vendors()
VENDORS_FOLDER = Path(card_facts.__file__).parents[2]


def nvidia_reasons() -> Iterator[str]:
    """Yield the reasons of polls, events and NVML's codes."""
    source = (VENDORS_FOLDER / "nvidia" / "health" / "card_facts.py").read_text()
    yield from re.findall(r'(?:Finding\(|yield )"([A-Z]\w+)"', source)
    yield from (reason for reason, _ in causes.RECOVERY_ACTIONS.values())
    yield from codes.REASONS.values()
    failing = (kind in xid.FAILING for kind in xid.CLASSES.values())
    yield from (f"Xid{n}" for n, fails in zip(xid.CLASSES, failing, strict=True) if fails)
    yield "Xid424242"


def ascend_reasons() -> Iterator[str]:
    source = (VENDORS_FOLDER / "ascend" / "health" / "verdict.py").read_text()
    yield from re.findall(r'yield "([A-Z]\w+)"', source)
    yield "HealthCode3"


def rdma_reasons() -> Iterator[str]:
    yield from (reason for reason in ports._MESSAGES if reason != "DeviceHealthy")
    yield from (kernel_log.FIRMWARE, kernel_log.PCIE)


def cambricon_reasons() -> Iterator[str]:
    yield from (reason for reason, _ in health._DRIVER.values())
    yield from (f"Incident{code}" for code in health.INCIDENTS)
    yield from health.PRECEDENCE


SHARED = frozenset({"NoPermission", "PermissionDenied", "LibraryMissing", "BoundToVFIO"})


@pytest.mark.parametrize(
    ("vendor", "reasons"),
    [
        ("nvidia", tuple(nvidia_reasons())),
        ("ascend", tuple(ascend_reasons())),
        ("rdma", tuple(rdma_reasons())),
        ("cambricon", tuple(cambricon_reasons())),
    ],
)
def test_every_reason_has_an_entry(vendor: str, reasons: tuple[str, ...]) -> None:
    assert len(reasons) > 10
    without = {reason for reason in reasons if find(vendor, reason) is None} - SHARED
    assert without == set()


def find(vendor: str, reason: str, message: str = "") -> RunbookEntry | None:
    runbook = find_vendor_runbook(VENDORS[vendor])
    return None if runbook is None else runbook.find(reason, message)


def entry(vendor: str, reason: str, message: str = "") -> RunbookEntry:
    one = find(vendor, reason, message)
    assert one is not None
    return one


def test_an_xid_has_the_action_of_its_catalogue() -> None:
    lost, contained = entry("nvidia", "Xid79"), entry("nvidia", "Xid95")
    assert lost.remedy.startswith("reboot the node")
    assert (lost.action, lost.category) == ("reboot", "pcie")
    assert "reset the GPU" in contained.remedy
    assert (contained.action, contained.category) == ("drain-and-reset", "memory")
    assert "application" in entry("nvidia", "Xid13").remedy
    assert (entry("nvidia", "Xid13").action, entry("nvidia", "Xid13").category) == ("none", "")


def test_an_unknown_xid_has_the_entry_of_all_unknown_ones() -> None:
    assert entry("nvidia", "Xid424242").anchor == "nvidia-xidunknown"
    assert entry("nvidia", "Xid424242").action is RecommendedAction.LOOK


@pytest.mark.parametrize(
    ("message", "words", "action", "anchor"),
    [
        ("80E18005 (RestartNPU); looks well again", "reset the chip", "drain-and-reset",
         "ascend-chipfault-restartnpu"),
        ("80E18005 (FreeRestartNPU)", "nothing runs on it", "reset",
         "ascend-chipfault-freerestartnpu"),
        ("80818C00 (SeparateNPU)", "vendor's support", "replace",
         "ascend-chipfault-separatenpu"),
        ("1 chip fault", "drain the chip", "drain-and-reset", "ascend-chipfault"),
    ],
)  # fmt: skip
def test_a_chip_fault_has_the_entry_of_its_class_also_while_it_is_watched(
    message: str, words: str, action: str, anchor: str
) -> None:
    one = entry("ascend", "ChipFault", f"NPU 3 reports 1 chip fault: {message}")
    assert (one.action, one.anchor) == (action, anchor)
    assert words in one.remedy


def test_an_unknown_incident_of_a_card_has_the_entry_of_the_incident_without_a_kind() -> None:
    assert entry("cambricon", "Incident77").anchor == "cambricon-incident1"
    assert entry("cambricon", "Incident26").category == "thermal"


def test_a_vendor_without_a_runbook_has_no_entries() -> None:
    assert find("fake", "Xid79") is None
