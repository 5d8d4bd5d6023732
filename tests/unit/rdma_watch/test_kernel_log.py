"""Lines of the kernel log that take a NIC out of service, and how it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshot.device import HealthState
from agent.snapshot.vendor import SessionContext
from plugins.vendors.rdma.health.kernel_log import (
    CLEAN_S,
    FIRMWARE,
    PCIE,
    KernelLogFault,
    KernelLogLine,
    check_port,
    parse_line,
    record_line,
)
from plugins.vendors.rdma.settings import RdmaSettings
from tests.unit.rdma import made
from tests.unit.rdma_watch.node import PF, PORT, Node, state

COMPROMISED = (
    f"mlx5_core {PF}: poll_health:814:(pid 0): device's health compromised - reached miss count"
)


@pytest.mark.parametrize(
    ("line", "address", "reason"),
    [
        pytest.param(COMPROMISED, PF, FIRMWARE, id="mlx5 counts no more"),
        pytest.param(
            f"mlx5_core {PF}: poll_health:825:(pid 0): Fatal error 1 detected",
            PF,
            FIRMWARE,
            id="mlx5 fatal error",
        ),
        pytest.param(
            f"mlx5_core {PF}: print_health_info:423:(pid 0): synd 0x8: "
            "unrecoverable hardware error",
            PF,
            FIRMWARE,
            id="mlx5 syndrome",
        ),
        pytest.param(
            f"bnxt_en {PF} ens1f0np0: Firmware fatal reset event received, max wait time 6000 msec",
            PF,
            FIRMWARE,
            id="bnxt_en",
        ),
        pytest.param(f"hns3 {PF}: IMP reset interrupt", PF, FIRMWARE, id="hns3"),
        pytest.param(
            f"mlx5_core {PF}: PCIe Bus Error: severity=Uncorrected (Fatal), "
            "type=Transaction Layer, (Receiver ID)",
            PF,
            PCIE,
            id="AER of the function",
        ),
        pytest.param(
            f"mlx5_core {PF}: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=x",
            PF,
            PCIE,
            id="AER in newer words",
        ),
        pytest.param(
            f"pcieport 0000:15:01.0: AER: Uncorrected (Non-Fatal) error received: {PF}",
            PF,
            PCIE,
            id="AER told by the port",
        ),
        pytest.param(
            f"pcieport 0000:15:01.0: AER: Multiple Uncorrectable (Fatal) error message "
            f"received from {PF}",
            PF,
            PCIE,
            id="AER told by the port, newer",
        ),
        pytest.param(
            "mlx5_core 10000:18:00.0: Fatal error 2 detected", "10000:18:00.0", FIRMWARE, id="VMD"
        ),
    ],
)
def test_a_line_names_the_function_and_what_broke(line: str, address: str, reason: str) -> None:
    result = parse_line(line)
    assert result is not None
    assert (result.address, result.reason) == (address, reason)
    assert result.text == line[:200]


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"mlx5_core {PF} ens1: Link down",
        f"mlx5_core {PF}: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        f"pcieport 0000:15:01.0: AER: Corrected error received: {PF}",
        "mlx5_core 18:00.0: Fatal error 1 detected",
        f"hns3 {PF}: reset link speed",
        "NVRM: Xid (PCI:0000:1b:00): 79, Fatal error 1 detected",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert parse_line(line) is None


@given(st.text(max_size=600) | st.builds("mlx5_core {}".format, st.text(max_size=600)))
def test_any_line_is_read(line: str) -> None:
    result = parse_line(line)
    assert result is None or result.reason in (FIRMWARE, PCIE)


def cause(last_s: float, active_s: float | None = None) -> KernelLogFault:
    return KernelLogFault(reason=FIRMWARE, text="x", last_s=last_s, active_s=active_s)


@pytest.mark.parametrize(
    ("before", "active", "now_s", "first", "after"),
    [
        pytest.param(cause(100), False, 900, False, cause(100), id="down: it holds"),
        pytest.param(cause(100), True, 110, False, cause(100, 110), id="up: the clock starts"),
        pytest.param(cause(100, 110), False, 200, False, cause(100), id="down again: it stops"),
        pytest.param(cause(100, 110), True, 409, False, cause(100, 110), id="not yet"),
        pytest.param(cause(100, 110), True, 410, False, None, id="five minutes"),
        pytest.param(cause(200, 110), True, 410, False, cause(200, 110), id="a line in between"),
        pytest.param(cause(100), True, 500, True, None, id="an old line at the start"),
        pytest.param(cause(100), True, 390, True, cause(100, 100), id="a newer one"),
        pytest.param(cause(100), False, 500, True, cause(100), id="old, and down"),
    ],
)
def test_a_cause_holds_until_five_active_minutes_without_another_line(
    before: KernelLogFault, active: bool, now_s: float, first: bool, after: KernelLogFault | None
) -> None:
    assert check_port(before, active=active, now_s=now_s, is_first=first) == after


def test_broken_firmware_explains_errors_of_the_bus() -> None:
    bus, firmware = KernelLogLine(PF, PCIE, "bus"), KernelLogLine(PF, FIRMWARE, "firmware")
    both = record_line(record_line(None, firmware, 10.0), bus, 20.0)
    assert (both.reason, both.text, both.last_s) == (FIRMWARE, "firmware", 20.0)
    assert record_line(record_line(None, bus, 10.0), firmware, 20.0).reason == FIRMWARE


class Talking(Node):
    """The machine with a kernel that writes to its log."""

    def __init__(self, folder: Path) -> None:
        entries = made.nic(PF, "mlx5_0") | {"/dev/kmsg": b""}
        super().__init__(folder, entries, RdmaSettings())
        self._sequence = 0

    def says(self, line: str, ago_s: float = 0.0) -> None:
        self._sequence += 1
        stamp_us = int((self.clock.monotonic() - ago_s) * 1e6)
        with (self.folder / "dev/kmsg").open("a") as file:
            file.write(f"3,{self._sequence},{stamp_us},-;{line}\n")

    def health(self) -> tuple[HealthState, str]:
        (device,) = self.session.discover().devices
        return device.health.state, device.health.reason


HEALTHY = (HealthState.HEALTHY, "DeviceHealthy")


@pytest.fixture
def talking(tmp_path: Path) -> Talking:
    return Talking(tmp_path)


def test_a_fatal_line_is_an_event_and_holds_though_the_port_is_active(talking: Talking) -> None:
    assert talking.health() == HEALTHY
    talking.says(COMPROMISED)
    (event,) = talking.after(1)
    assert (event.key, event.reason, event.state) == (PF, FIRMWARE, HealthState.FAILED)
    assert "reached miss count" in event.message
    assert talking.health() == (HealthState.FAILED, FIRMWARE)
    sample = talking.sample()
    assert sample.health is not None
    assert sample.health.reason == FIRMWARE
    reports = [talking.after(100) for _ in range(3)]
    assert [[e.reason for e in events] for events in reports] == [[], [], ["DeviceHealthy"]]
    assert talking.health() == HEALTHY


def test_a_line_before_the_agents_start_counts_if_it_is_not_long_ago(talking: Talking) -> None:
    talking.says(COMPROMISED, ago_s=60)
    assert talking.health() == (HealthState.FAILED, FIRMWARE)
    talking.clock.advance(CLEAN_S)
    talking.session.discover()
    assert talking.health() == HEALTHY


def test_a_line_of_long_ago_is_over_where_the_port_works(talking: Talking) -> None:
    talking.says(COMPROMISED, ago_s=900)
    assert talking.health() == HEALTHY


def test_a_line_of_long_ago_holds_where_the_port_does_not_work(talking: Talking) -> None:
    talking.change(state("1: DOWN"))
    talking.says(COMPROMISED, ago_s=900)
    assert talking.health() == (HealthState.FAILED, FIRMWARE)


def test_a_device_that_was_added_anew_starts_anew(talking: Talking) -> None:
    talking.says(COMPROMISED)
    assert talking.health()[1] == FIRMWARE
    link = talking.folder / "sys/class/infiniband/mlx5_0"
    text = link.readlink()
    link.unlink()
    for _ in range(2):
        talking.session.discover()
    link.symlink_to(text)
    assert talking.health() == HEALTHY


def test_a_person_can_have_it_forgotten(talking: Talking) -> None:
    talking.says(COMPROMISED)
    assert talking.health()[1] == FIRMWARE
    assert talking.session.clear(PF)
    assert talking.health() == HEALTHY
    assert not talking.session.clear(PF)


def test_a_refused_log_is_reported_once_and_stops_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, made.nic(PF, "mlx5_0"), RdmaSettings())
    result = node.session.discover()
    assert [problem.reason for problem in result.problems] == ["KernelLogUnread"]
    assert result.devices[0].health.state is HealthState.HEALTHY
    assert PORT
    recorded = Node(tmp_path, {}, RdmaSettings(), SessionContext(is_replay=True))
    assert recorded.session.discover().problems == ()


def test_closing_twice_is_closing_once(talking: Talking) -> None:
    talking.session.close()
    talking.session.close()
