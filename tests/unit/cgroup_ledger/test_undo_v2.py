"""Undo on version 2 groups, whose kernel refuses what version 1 takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.cgroup.keys import CPUS, MEMORY, CgroupKey, CgroupValue
from agent.cgroup.layout import CgroupLayout
from agent.cgroup.ledger import SWITCHES, SYSCTL_HIERARCHY, ChangeLedger, LedgerEntry
from agent.cgroup.restore import NEWER_VERSION_TEXT, RestoreResult, restore_entries
from agent.cgroup.values import CgroupValues
from agent.cgroup.write_plan import DesiredValue
from agent.cgroup.writer import CgroupWriter
from agent.clock import ManualClock
from tests.cgroup_v2.fake import MOUNT, FakeFiles, FakeKernel
from tests.cgroup_v2.settings import FakeSettings

LAYOUT = CgroupLayout(version=2, driver="cgroupfs", mounts=(), unified=MOUNT, root="/kubepods")

GIB, MIB = 1 << 30, 1 << 20
DRIVERS = {
    "cgroupfs": ("/kubepods", "/kubepods/podx", "/kubepods/podx/c1"),
    "systemd": (
        "/kubepods.slice",
        "/kubepods.slice/kubepods-podx.slice",
        "/kubepods.slice/kubepods-podx.slice/cri-containerd-c1.scope",
    ),
}
CALLS = ("pwrite", "fsync", "replace", "ftruncate", "unlink")  # all that change the ledger
MOST_STEPS = 40


class Killed(BaseException):
    """The process ends here."""


class Node:
    """One pod with one running container, and the agent's ledger on a disk."""

    def __init__(self, folder: Path, driver: str = "cgroupfs") -> None:
        self.path = str(folder / "ledger.log")
        root, self.pod, self.container = DRIVERS[driver]
        self.kernel = FakeKernel(root)
        self.files = FakeFiles(self.kernel)
        for cgroup in (self.pod, self.container):
            self.kernel.make(cgroup)
        self.kernel.group(self.container).processes = 1
        layout = CgroupLayout(version=2, driver=driver, mounts=(), unified=MOUNT, root=root)
        self.values = CgroupValues(self.files, layout)

    def ledger(self) -> ChangeLedger:
        """Read the ledger, as a process that starts does."""
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        return ledger

    def write(self, *wishes: tuple[str, CgroupKey, CgroupValue]) -> None:
        """Start the agent and let it write."""
        ledger = self.ledger()
        writer = CgroupWriter(self.values, ledger, ManualClock())
        ready = writer.prepare(
            [DesiredValue(cgroup=c, key=k, value=v, owner="test") for c, k, v in wishes], 0.0
        )
        writer.record_in_ledger(ready)
        ledger.flush()
        writer.apply(ready, 0.0)

    def undo(self, *, dry_run: bool = False) -> tuple[RestoreResult, ...]:
        """Start `restore` and return what it says."""
        ledger = self.ledger()
        entries = tuple(ledger.entries.values())
        outcome = restore_entries(
            ledger, self.values, entries, monotonic=lambda: 0.0, dry_run=dry_run
        )
        if not dry_run:
            ledger.remove_if_empty()
        return outcome

    def get(self, cgroup: str, file: str) -> str:
        """Read a file."""
        return self.kernel.read(f"{cgroup}/{file}").strip()


@pytest.fixture(params=DRIVERS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path, request.param)


def states(restore_results: tuple[RestoreResult, ...]) -> list[str]:
    return [restore_result.state for restore_result in restore_results]


def test_a_running_container_gets_the_cpus_of_the_group_above_and_the_answer_says_so(
    node: Node,
) -> None:
    node.write((node.container, CPUS, frozenset({2, 3})))
    (planned,) = node.undo(dry_run=True)
    assert planned.summary.startswith(f"{node.container}/cpuset.cpus 2-3 → 0-3 (")
    assert "all CPUs of the group above" in planned.summary
    assert node.get(node.container, "cpuset.cpus") == "2-3"
    (outcome,) = node.undo()
    assert (outcome.state, outcome.summary) == ("restored", planned.summary)
    assert node.get(node.container, "cpuset.cpus") == "0-3"
    assert not Path(node.path).exists()


def test_a_group_without_processes_is_empty_again(node: Node) -> None:
    node.write((node.container, CPUS, frozenset({2, 3})))
    node.kernel.group(node.container).processes = 0
    (planned,) = node.undo(dry_run=True)
    assert planned.summary == f"{node.container}/cpuset.cpus 2-3 → "
    assert states(node.undo()) == ["restored"]
    assert node.get(node.container, "cpuset.cpus") == ""


def test_the_cpus_above_are_those_after_the_group_above_is_restored_too(node: Node) -> None:
    node.kernel.group(node.pod).cpus = frozenset({0, 1, 2})
    node.write((node.pod, CPUS, frozenset({2, 3})), (node.container, CPUS, frozenset({3})))
    targets = {one.entry.path: one.target for one in node.undo(dry_run=True)}
    assert targets == {node.pod: "", node.container: "0-2"}
    assert set(states(node.undo())) == {"restored"}
    assert node.get(node.pod, "cpuset.cpus") == "0-2"
    assert node.get(node.container, "cpuset.cpus") == "0-2"


def test_what_another_writer_set_since_stays(node: Node) -> None:
    node.write((node.container, CPUS, frozenset({2, 3})))
    node.kernel.group(node.container).cpus = frozenset({1})
    assert states(node.undo()) == ["foreign"]
    assert node.get(node.container, "cpuset.cpus") == "1"


def killed_at(
    step: int, node: Node, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Do the work, ended before its n-th change of anything; return whether it was ended."""
    remaining = [step]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            remaining[0] -= 1
            if remaining[0] < 0:
                raise Killed
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(node.files, "write", counted(node.files.write))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("more_cpus", [False, True])
def test_killed_at_any_step_the_next_restore_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_cpus: bool
) -> None:
    for step in range(MOST_STEPS):
        node = Node(tmp_path)
        node.kernel.group(node.pod).cpus = frozenset({0, 1, 2})
        node.write(
            (node.pod, CPUS, frozenset({1, 2})),
            (node.container, CPUS, frozenset({2})),
            (node.container, MEMORY, 10**9),
        )
        killed = killed_at(step, node, node.undo, monkeypatch)
        if more_cpus:  # while nobody looked
            for cgroup in ("", "/kubepods"):
                node.kernel.group(cgroup).cpus = frozenset()
        assert "foreign" not in states(node.undo())
        assert node.get(node.pod, "cpuset.cpus") == "0-2"
        assert node.get(node.container, "cpuset.cpus") == "0-2"
        assert node.get(node.container, "memory.max") == "max"
        assert not Path(node.path).exists()
        if not killed:
            break
    assert 6 < step < MOST_STEPS - 1


def test_a_wider_group_above_does_not_make_our_own_value_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(MOST_STEPS):
        node = Node(tmp_path)
        node.kernel.group(node.pod).cpus = frozenset({0, 1})
        node.write((node.container, CPUS, frozenset({1})))
        killed = killed_at(step, node, node.undo, monkeypatch)
        node.kernel.group(node.pod).cpus = frozenset({0, 1, 2})
        remaining = bool(node.ledger().entries)
        assert "foreign" not in states(node.undo())
        assert node.get(node.container, "cpuset.cpus") == ("0-2" if remaining else "0-1")
        if not killed:
            break
    assert 2 < step < MOST_STEPS - 1


@pytest.mark.parametrize("limit", [10**9, 500 * 10**6, GIB, 500 * MIB, 4097])
def test_a_limit_that_is_no_multiple_of_a_page_is_recognised_as_the_agents(
    node: Node, limit: int
) -> None:
    node.write((node.container, MEMORY, limit))
    assert states(node.undo()) == ["restored"]
    assert node.get(node.container, "memory.max") == "max"


def test_after_many_changes_of_such_a_limit_the_first_original_is_put_back(node: Node) -> None:
    for limit in (10**9, 2 * 10**9, 3 * 10**9 + 1, 500 * 10**6):
        node.write((node.container, MEMORY, limit))
        (entry,) = node.ledger().entries.values()
        assert entry.original == "-1"
    assert states(node.undo()) == ["restored"]
    assert node.get(node.container, "memory.max") == "max"


def test_a_limit_that_another_writer_rounds_elsewhere_is_not_the_agents(node: Node) -> None:
    node.write((node.container, MEMORY, 10**9))
    node.kernel.write(f"{node.container}/memory.max", str(10**9 + 4096))
    assert states(node.undo()) == ["foreign"]


def entry(**fields: object) -> LedgerEntry:
    base: dict[str, object] = {
        "hierarchy": "v2",
        "path": "/kubepods/podx",
        "inode": 3,
        "key": "cpuset.cpus",
        "owner": "cpuset",
        "original": "",
    }
    return LedgerEntry(**{**base, **fields})  # type: ignore[arg-type]  # one field of each type


@pytest.mark.parametrize(
    "newer",
    [entry(key="io.max"), entry(hierarchy="landlock"), entry(hierarchy="v3")],
    ids=lambda one: f"{one.hierarchy} {one.key}",
)
def test_a_file_that_only_a_newer_version_writes_stays_in_the_ledger(
    tmp_path: Path, newer: LedgerEntry
) -> None:
    node = Node(tmp_path)
    ledger = node.ledger()
    ledger.set(newer)
    ledger.flush()
    (one,) = node.undo()
    assert (one.state, one.detail) == ("refused", NEWER_VERSION_TEXT)
    assert list(node.ledger().entries.values()) == [newer]


@pytest.mark.parametrize("original", ["nonsense", "9" * 5000, "--5", "-1 x", "1 2 3"])
@pytest.mark.parametrize("key", ["memory.limit_in_bytes", "cpu.cfs_quota_us", "cpuset.cpus"])
def test_an_original_that_no_kernel_prints_costs_only_its_own_file(
    tmp_path: Path, key: str, original: str
) -> None:
    node = Node(tmp_path)
    node.write((node.container, CPUS, frozenset({2})))
    ledger = node.ledger()
    inode = node.kernel.group(node.pod).inode
    ledger.set(entry(path=node.pod, inode=inode, key=key, original=original))
    ledger.flush()
    assert sorted(states(node.undo())) == ["refused", "restored"]


def test_an_entry_writes_no_switch_but_those_of_the_agent(tmp_path: Path) -> None:
    node = Node(tmp_path)
    ledger = node.ledger()
    for path in ("/proc/sys/kernel/core_pattern", f"{SWITCHES[0]}/../core_pattern", "/etc/passwd"):
        ledger.set(
            entry(hierarchy=SYSCTL_HIERARCHY, path=path, key="value", original="|/bin/sh", inode=0)
        )
    entries = tuple(ledger.entries.values())
    outcome = restore_entries(ledger, node.values, entries, monotonic=lambda: 0.0, force=True)
    assert states(outcome) == ["refused"] * 3
    assert node.files.writes == []


@pytest.mark.parametrize("original", ["7", "-1", "|/bin/sh", ""])
def test_a_switch_is_restored_to_a_value_that_it_can_have_only(original: str) -> None:
    settings = FakeSettings(sched_core=1)
    values = CgroupValues(settings, LAYOUT)
    ledger = ChangeLedger(None, "")
    switch = entry(
        hierarchy=SYSCTL_HIERARCHY,
        path=SWITCHES[0],
        key="value",
        inode=0,
        original=original,
        own_values=("1",),
    )
    ledger.set(switch)
    outcome = restore_entries(ledger, values, (switch,), monotonic=lambda: 0.0, force=True)
    assert (states(outcome), settings.writes) == (["refused"], [])


def test_a_dry_run_says_what_becomes_of_a_switch() -> None:
    settings = FakeSettings(sched_core=1)
    values = CgroupValues(settings, LAYOUT)
    ledger = ChangeLedger(None, "")
    switch = entry(
        hierarchy=SYSCTL_HIERARCHY,
        path=SWITCHES[0],
        key="value",
        inode=0,
        original="0",
        own_values=("1",),
    )
    ledger.set(switch)
    (dry,) = restore_entries(ledger, values, (switch,), monotonic=lambda: 0.0, dry_run=True)
    assert (dry.state, dry.summary) == ("planned", f"{SWITCHES[0]} 1 → 0")
    assert settings.writes == []
    (outcome,) = restore_entries(ledger, values, (switch,), monotonic=lambda: 0.0)
    assert (outcome.state, settings.writes) == ("restored", [(SWITCHES[0], "0")])
