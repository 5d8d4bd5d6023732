"""Events of the driver and of the kernel log."""

from __future__ import annotations

import select
from pathlib import Path
from typing import ClassVar

import pytest

from agent.host.files import LiveHostFiles
from agent.snapshot.device import HealthState
from agent.snapshot.inventory import DeviceEvent
from agent.snapshot.vendor import SessionContext
from plugins.vendors.nvidia.session import NvidiaSession
from plugins.vendors.nvidia.settings import NvidiaSettings
from tests.fault.nvml_stub import Stub, gpu, on_live_tree, on_tree
from tests.unit.nvidia.conftest import BUSES

POLL = select.poll
SYSTEM = "system driver=570.124.06 cuda=12080"
GPUS = tuple(gpu(i, bus) for i, bus in enumerate(BUSES))
FAILED = HealthState.FAILED
CUT = (
    gpu(0, BUSES[0], migmode=1),
    "profile 0 2 id=9 slices=3 max=2 mb=40448",
    "profile 0 0 id=19 slices=1 max=7 mb=9984",
    "mig 0 0 uuid=MIG-a gi=3 ci=0 k=2 cik=0 start=0 size=4 mb=40448 sm=16",
    "mig 0 1 uuid=MIG-b gi=3 ci=1 k=2 cik=0 start=0 size=4 mb=40448 sm=16",
    "mig 0 2 uuid=MIG-c gi=5 ci=0 k=0 cik=0 start=4 size=1 mb=9984 sm=16",
)


def log_line(tree: Path, *texts: str, first: int = 1) -> None:
    """Append lines, one second apart, to the kernel log of a tree."""
    log = tree / "dev/kmsg"
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as file:
        for number, text in enumerate(texts, first):
            file.write(f"4,{number},{number}000000,-;{text}\n")


def xid(bus: str, number: int, tail: str = "pid=1, name=a") -> str:
    return f"NVRM: Xid (PCI:{bus.removesuffix('.0')}): {number}, {tail}"


def reported(events: list[DeviceEvent]) -> list[tuple[str, str, HealthState | None]]:
    return [(e.key, e.reason, e.state) for e in events]


@pytest.mark.parametrize(
    ("numbers", "hit", "well"),
    [
        pytest.param("gi=3", ["MIG-a", "MIG-b"], ["MIG-c"], id="V38"),
        pytest.param("gi=3 ci=1", ["MIG-b"], ["MIG-a", "MIG-c"], id="V38-one-compute-instance"),
    ],
)
def test_an_error_of_an_instance_takes_its_slices_and_not_the_card(
    stub: Stub, tree: Path, numbers: str, hit: list[str], well: list[str]
) -> None:
    stub.play(SYSTEM, *CUT)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *CUT, f"event 0 type=8 data=95 at=0 {numbers}")
        events = [child.wait_event() for _ in hit]
        card = child.discover().devices[0]
    assert [(e.partition, e.reason, e.state) for e in events] == [
        (uuid, "Xid95", FAILED) for uuid in hit
    ]
    assert card.health.state is HealthState.HEALTHY
    states = {p.uuid: p.health.reason == "Xid95" for p in card.partitions}
    assert states == {**dict.fromkeys(hit, True), **dict.fromkeys(well, False)}


def test_an_error_of_nobody_in_particular_takes_the_card_with_all_its_slices(
    stub: Stub, tree: Path
) -> None:
    stub.play(SYSTEM, *CUT)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *CUT, "event 0 type=8 data=95 at=0")
        event = child.wait_event()
        card = child.discover().devices[0]
    assert event.partition == ""
    assert {card.health.reason, *(p.health.reason for p in card.partitions)} == {"Xid95"}


def test_a_changed_recovery_action_is_read_at_once(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS, "field 1 230 u32 0")
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "field 1 230 u32 1", f"event 1 type={0x8000} at=0")
        events = [child.wait_event(), child.wait_event()]
    assert reported(events) == [
        (BUSES[1], "RecoveryActionChanged", None),
        (BUSES[1], "GPUResetRequired", FAILED),
    ]


def test_a_bound_or_removed_card_causes_a_check_of_all(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "binding type=1", "binding type=2")
        events = [child.wait_event(), child.wait_event()]
    assert reported(events) == [("", "DriverUnbound", None), ("", "DriverBound", None)]


def test_the_kernel_log_is_read_without_the_library(tree: Path, tmp_path: Path) -> None:
    log_line(tree, "ready")
    session = NvidiaSession(
        LiveHostFiles(str(tree)), NvidiaSettings(library_dirs=(str(tmp_path / "none"),))
    )
    assert session.discover().problems[0].reason == "LibraryMissing"
    assert session.events(0.0) == ()
    log_line(tree, xid(BUSES[2], 79), "noise", xid(BUSES[3], 31), first=2)
    events = session.events(0.0)
    reasons = {d.key: d.health.reason for d in session.discover().devices}
    session.close()
    assert reported(list(events)) == [(BUSES[2], "Xid79", FAILED), (BUSES[3], "Xid31", None)]
    assert reasons[BUSES[2]] == "Xid79"
    assert reasons[BUSES[3]] == "LibraryMissing"


def test_the_log_names_the_required_action_when_the_driver_cannot_be_called(
    tree: Path, tmp_path: Path
) -> None:
    log_line(tree, "ready")
    session = NvidiaSession(
        LiveHostFiles(str(tree)), NvidiaSettings(library_dirs=(str(tmp_path / "none"),))
    )
    session.events(0.0)
    change = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    log_line(tree, xid(BUSES[1], 154, change), first=2)
    events = session.events(0.0)
    session.close()
    assert reported(list(events)) == [
        (BUSES[1], "Xid154", None),
        (BUSES[1], "GPUResetRequired", FAILED),
    ]


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo_v2 3", "nvmlEventSetWait_v2"])
def test_the_kernel_log_is_read_while_the_library_hangs(stub: Stub, tree: Path, call: str) -> None:
    log_line(tree, "ready")
    stub.play(SYSTEM, *GPUS)
    with on_live_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, f"hang {call}", "hang nvmlDeviceGetMemoryInfo_v2 3")
        with pytest.raises(TimeoutError):
            child.ask("sample", 0.5)
        log_line(tree, "NVRM: GPU 0000:83:00.0: GPU has fallen off the bus.", first=2)
        event = child.wait_event()
    assert reported([event]) == [("0000:83:00.0", "Xid79", FAILED)]


def test_an_event_in_the_log_and_of_the_driver_counts_once(stub: Stub, tree: Path) -> None:
    log_line(tree, "ready")
    stub.play(SYSTEM, *GPUS)
    with on_live_tree(stub, tree) as child:
        child.discover()
        stub.play(SYSTEM, *GPUS, "event 1 type=8 data=48 at=0")
        first = child.wait_event()
        log_line(tree, xid(BUSES[1], 48), xid(BUSES[1], 31), first=2)
        second = child.wait_event()
        readings = child.sample()[1].readings
    assert [first.reason, second.reason] == ["Xid48", "Xid31"]
    assert [(r.labels, r.value) for r in readings if r.family == "xpu_device_xid_errors_total"] == [
        (("31",), 1.0),
        (("48",), 1.0),
    ]


def test_at_the_start_the_past_of_this_boot_is_read_and_a_later_recovery_counts(
    stub: Stub, tree: Path
) -> None:
    log_line(tree, xid(BUSES[1], 119), xid(BUSES[2], 79), xid(BUSES[3], 13))
    stub.play(SYSTEM, *GPUS, *(f"field {i} 230 u32 {int(i == 4)}" for i in range(8)))
    with on_live_tree(stub, tree) as child:
        events = [child.wait_event(), child.wait_event()]
        health = [d.health.reason for d in child.discover().devices[:5]]
    assert reported(events) == [(BUSES[1], "Xid119", FAILED), (BUSES[2], "Xid79", FAILED)]
    # the driver requires no action for the second card any more; the third needs a reboot
    assert health == [
        "DeviceHealthy",
        "DeviceHealthy",
        "Xid79",
        "DeviceHealthy",
        "GPUResetRequired",
    ]


def test_after_a_restart_the_past_is_counted_again_but_not_judged_again(
    tree: Path, tmp_path: Path
) -> None:
    (tree / "proc/sys/kernel/random").mkdir(parents=True)
    boot_id = "11111111-1111-4111-8111-111111111111"
    (tree / "proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
    settings = NvidiaSettings(library_dirs=(str(tmp_path / "none"),))
    context = SessionContext(state_dir=str(tmp_path / "state"))
    log_line(tree, xid(BUSES[1], 119))
    first = NvidiaSession(LiveHostFiles(str(tree)), settings, context)
    assert reported(list(first.events(0.0))) == [(BUSES[1], "Xid119", FAILED)]
    assert first.clear(BUSES[1])
    first.close()
    second = NvidiaSession(LiveHostFiles(str(tree)), settings, context)
    assert second.events(0.0) == ()
    log_line(tree, xid(BUSES[2], 48), first=2)
    assert reported(list(second.events(0.0))) == [(BUSES[2], "Xid48", FAILED)]
    second.close()


def test_a_machine_whose_log_cannot_be_read_says_so(stub: Stub, tree: Path) -> None:
    stub.play(SYSTEM, *GPUS)
    with on_live_tree(stub, tree) as child:
        problems = child.discover().problems
    assert [p.reason for p in problems] == ["KernelLogUnread"]


def test_a_storm_in_the_log_causes_few_events(tree: Path, tmp_path: Path) -> None:
    log_line(tree, "ready")
    session = NvidiaSession(
        LiveHostFiles(str(tree)), NvidiaSettings(library_dirs=(str(tmp_path / "none"),))
    )
    session.events(0.0)
    log_line(tree, *[xid(BUSES[0], 31)] * 5000, first=2)
    events = [event for _ in range(10) for event in session.events(0.0)]
    session.close()
    assert 1 <= len(events) <= 3


class RecordedPoll:
    """The kernel's poll, which records how long each call might take."""

    timeouts_ms: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self._poll = POLL()

    def register(self, fd: int, mask: int) -> None:
        self._poll.register(fd, mask)

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        self.timeouts_ms.append(timeout_ms)
        return self._poll.poll(timeout_ms)


def test_a_wait_without_events_wakes_the_processor_once(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "poll", RecordedPoll)
    session = NvidiaSession(
        LiveHostFiles(str(tree)), NvidiaSettings(library_dirs=(str(tmp_path / "none"),))
    )
    RecordedPoll.timeouts_ms.clear()
    for _ in range(5):
        assert session.events(0.02) == ()
    session.close()
    assert len(RecordedPoll.timeouts_ms) == 5


def test_an_error_of_a_switch_concerns_all_cards(tree: Path, tmp_path: Path) -> None:
    log_line(tree, "ready")
    session = NvidiaSession(
        LiveHostFiles(str(tree)), NvidiaSettings(library_dirs=(str(tmp_path / "none"),))
    )
    session.events(0.0)
    log_line(tree, "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 down", first=2)
    (event,) = session.events(0.0)
    session.close()
    assert (event.key, event.reason, event.state) == ("", "SXid20034", None)
    assert "fatal" in event.message
