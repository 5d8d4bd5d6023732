"""Each reason for which a device is out of service or in doubt has a remedy of its vendor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.probe.base import remedy_of
from agent.probe.vendors import load_vendors
from plugins.bindings.nvml import library
from plugins.faults import cambricon
from plugins.faults.nvidia import polled, xid
from plugins.faults.rdma import kernel_log, ports

VENDORS = load_vendors()
FAULTS = Path(polled.__file__).parents[1]


def nvidia_reasons() -> Iterator[str]:
    """Yield what polls, events and NVML's answers are called."""
    source = (FAULTS / "nvidia" / "polled.py").read_text()
    yield from re.findall(r'(?:Finding\(|yield )"([A-Z]\w+)"', source)
    yield from (reason for reason, _ in polled.ACTIONS.values())
    yield from library.REASONS.values()
    failing = (kind in xid.FAILING for kind in xid.CLASSES.values())
    yield from (f"Xid{n}" for n, fails in zip(xid.CLASSES, failing, strict=True) if fails)
    yield "Xid424242"


def ascend_reasons() -> Iterator[str]:
    source = (FAULTS / "ascend" / "verdict.py").read_text()
    yield from re.findall(r'yield "([A-Z]\w+)"', source)
    yield "HealthCode3"


def rdma_reasons() -> Iterator[str]:
    yield from (reason for reason in ports._WORDS if reason != "DeviceHealthy")
    yield from (kernel_log.FIRMWARE, kernel_log.PCIE)


def cambricon_reasons() -> Iterator[str]:
    yield from (reason for reason, _ in cambricon._DRIVER.values())
    yield from (f"Incident{code}" for code in cambricon.INCIDENTS)
    yield from cambricon.PRECEDENCE


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
    without = {one for one in reasons if not remedy_of(plugin, one, "")} - SHARED
    assert without == set()


def test_an_xid_names_what_its_catalogue_says() -> None:
    assert remedy_of(VENDORS["nvidia"], "Xid79", "").startswith("reboot the node")
    assert "reset the GPU" in remedy_of(VENDORS["nvidia"], "Xid95", "")
    assert "application" in remedy_of(VENDORS["nvidia"], "Xid13", "")


def test_a_chip_fault_has_the_remedy_of_its_class_also_while_it_is_watched() -> None:
    message = "NPU 3 reports 1 chip fault: 80E18005 (RestartNPU); looks well again"
    assert "reset the chip" in remedy_of(VENDORS["ascend"], "ChipFault", message)


def test_a_vendor_that_names_no_remedies_has_none() -> None:
    assert remedy_of(VENDORS["fake"], "Xid79", "") == ""
