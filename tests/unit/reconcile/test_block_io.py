"""Limits of block IO on this machine's version 1 groups: written, changed, restored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.restore import restore_all
from agent.host.files import LiveHostFiles
from agent.qos.block_io import BlockIoStrategy
from agent.slo.overlay import overlay_spec
from agent.snapshot.cluster import ClusterView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSloView
from agent.snapshot.usage import BlockDevice, StorageUsage, UsageSample
from tests.kill_steps import killed_at
from tests.realgroups import RealGroups, needs_blkio, real_groups
from tests.unit.reconcile.scene import Scene

pytestmark = [needs_blkio, pytest.mark.root]

MOST = 60  # far more steps than one cycle has
FILES = tuple(
    f"blkio.throttle.{name}_device" for name in ("read_bps", "read_iops", "write_bps", "write_iops")
)
LIMITS = {"readBPS": 1048576, "readIOPS": 1024, "writeIOPS": 512}
TEXTS = ["1048576", "1024", "", "512"]  # of the files, without the device


def whole_disks() -> list[BlockDevice]:
    """Return the disks of this machine that have a size."""
    return [
        BlockDevice(
            name=folder.name, number=(folder / "dev").read_text().strip(), kind="disk", size_bytes=1
        )
        for folder in sorted(Path("/sys/class/block").iterdir())
        if not (folder / "partition").exists() and int((folder / "size").read_text())
    ]


class Node:
    """A node with a best-effort directory, on real groups."""

    def __init__(self, groups: RealGroups, ledger_path: Path) -> None:
        self.groups = groups
        self.path = str(ledger_path)
        self.best_effort = groups.make(f"{groups.root}/besteffort")
        self.disks = whole_disks()
        self.slo: object = None
        self.scene = self.start()

    def start(self) -> Scene:
        """Start the agent."""
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        self.scene = Scene(self.groups, ledger=ledger, strategies=(BlockIoStrategy(),))
        return self.scene

    def ask(self, io_cfg: Mapping[str, object] | None) -> None:
        """Make the NodeSLO ask for limits of the first disk; `None`: for none."""
        block = {"name": self.disks[0].name, "ioCfg": io_cfg}
        spec = {"beClass": {"blkioQOS": {"enable": True, "blocks": [block]}}}
        self.slo = {} if io_cfg is None else {"resourceQOSStrategy": spec}

    def cycle(self) -> None:
        """Let the agent make one cycle."""
        now_s = self.scene.clock.monotonic()
        slo = NodeSloView(found=True, slo=overlay_spec(self.slo).slo)
        storage = StorageUsage(devices=tuple(self.disks))
        self.scene.snapshot = msgspec.structs.replace(
            self.scene.snapshot,
            cluster=ClusterView(slo=SnapshotPart(slo, now_s)),
            usage=SnapshotPart(UsageSample(storage=storage), now_s),
        )
        self.scene.cycle()

    def live(self) -> None:
        """Start the agent and let it make one cycle."""
        self.start()
        self.cycle()

    def restore(self) -> None:
        """Restore what the ledger says."""
        ledger = ChangeLedger(self.path, "boot")
        ledger.load()
        restore_all(ledger, self.groups.layout, LiveHostFiles(), monotonic=time.monotonic)

    def lines(self) -> list[str]:
        """Return the lines of the first disk, without its number."""
        number = self.disks[0].number
        texts = [self.groups.get(self.best_effort, name) for name in FILES]
        return [
            next((t.removeprefix(f"{number} ") for t in text.splitlines() if number in t), "")
            for text in texts
        ]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with real_groups("blkio") as groups:
        yield Node(groups, tmp_path / "ledger.log")


def test_a_node_slo_limits_best_effort_pods_and_its_end_restores_their_files(node: Node) -> None:
    node.ask({**LIMITS, "ioWeightPercent": 40})
    node.cycle()
    assert node.lines() == TEXTS
    (status,) = node.scene.view_of_strategies.strategies
    assert (status.state, status.values) == (StrategyState.ACTIVE, 4)
    assert status.message == "not on this kernel: blkio.cost.weight"
    node.ask({"writeBPS": 7})
    node.cycle()
    assert node.lines() == ["", "", "7", ""]
    node.ask(None)
    node.cycle()
    assert node.lines() == ["", "", "", ""]
    assert node.scene.ledger.entries == {}


def test_every_write_is_in_the_audit_with_its_line_and_the_field_that_asks(node: Node) -> None:
    node.ask({"readBPS": 1048576})
    node.cycle()
    (record,) = node.scene.reconciler.audits
    number = node.disks[0].number
    assert (record.owner, record.key) == ("block_io", f"{FILES[0]} {number}")
    assert record.path.endswith(f"/besteffort/{FILES[0]}")
    assert (record.old, record.new) == (f"{number} 0", f"{number} 1048576")
    assert record.message == f"set {FILES[0]} to {number} 1048576"
    assert record.source == "NodeSLO spec.resourceQOSStrategy.beClass.blkioQOS"


def test_lines_of_another_disk_and_of_another_program_stay(node: Node) -> None:
    if len(node.disks) < 2:
        pytest.skip("one disk only")
    other = node.disks[1].number
    node.groups.put(node.best_effort, FILES[0], f"{other} 9")
    node.ask(LIMITS)
    node.cycle()
    node.ask(None)
    node.cycle()
    assert node.groups.get(node.best_effort, FILES[0]) == f"{other} 9"


def test_a_pod_is_limited_until_its_annotation_is_removed(node: Node) -> None:
    pod, number = node.scene.pod, node.disks[0].number
    text = f'{{"blocks": [{{"name": "{node.disks[0].name}", "iocfg": {{"readIOPS": 5}}}}]}}'
    view = node.scene.view(
        labels=(("koordinator.sh/qosClass", "LS"),),
        annotations=(("koordinator.sh/blkioQOS", text),),
    )
    node.scene.snapshot = msgspec.structs.replace(
        node.scene.snapshot, pods=SnapshotPart((view,), 1.0)
    )
    node.cycle()
    assert node.groups.get(pod, FILES[1]) == f"{number} 5"
    view = msgspec.structs.replace(view, annotations=())
    node.scene.snapshot = msgspec.structs.replace(
        node.scene.snapshot, pods=SnapshotPart((view,), 1.0)
    )
    node.cycle()
    assert node.groups.get(pod, FILES[1]) == ""


@pytest.mark.parametrize("original", ["", "77"])
def test_killed_at_any_step_of_writing_a_restore_gives_the_originals(
    node: Node, original: str
) -> None:
    number = node.disks[0].number
    for step in range(MOST):
        node.groups.put(node.best_effort, FILES[1], f"{number} {original or 0}")
        node.ask(LIMITS)
        killed = killed_at(step, node.live)
        node.restore()
        assert node.lines() == ["", original, "", ""], step
        assert not Path(node.path).exists()
        if not killed:
            break
    assert 3 < step < MOST - 1
