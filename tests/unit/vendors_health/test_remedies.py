"""Each reason for which a device is out of service or in doubt has a remedy of its vendor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.workers.abilities import find_remedy
from agent.workers.load import load_vendors
from plugins.vendors.cambricon import health
from plugins.vendors.nvidia.health import card_facts, remedies, xid
from plugins.vendors.nvidia.library import codes
from plugins.vendors.rdma.health import kernel_log, ports

VENDORS = load_vendors()
VENDORS_FOLDER = Path(card_facts.__file__).parents[2]


def nvidia_reasons() -> Iterator[str]:
    """Yield the reasons of polls, events and NVML's codes."""
    source = (VENDORS_FOLDER / "nvidia" / "health" / "card_facts.py").read_text()
    yield from re.findall(r'(?:Finding\(|yield )"([A-Z]\w+)"', source)
    yield from (reason for reason, _ in remedies.RECOVERY_ACTIONS.values())
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
def test_every_reason_has_a_remedy(vendor: str, reasons: tuple[str, ...]) -> None:
    assert len(reasons) > 10
    plugin = VENDORS[vendor]
    without = {reason for reason in reasons if not find_remedy(plugin, reason, "")} - SHARED
    assert without == set()


def test_an_xid_names_what_its_catalogue_says() -> None:
    assert find_remedy(VENDORS["nvidia"], "Xid79", "").startswith("reboot the node")
    assert "reset the GPU" in find_remedy(VENDORS["nvidia"], "Xid95", "")
    assert "application" in find_remedy(VENDORS["nvidia"], "Xid13", "")


def test_a_chip_fault_has_the_remedy_of_its_class_also_while_it_is_watched() -> None:
    message = "NPU 3 reports 1 chip fault: 80E18005 (RestartNPU); looks well again"
    assert "reset the chip" in find_remedy(VENDORS["ascend"], "ChipFault", message)


def test_a_vendor_that_names_no_remedies_has_none() -> None:
    assert find_remedy(VENDORS["fake"], "Xid79", "") == ""
