"""Any sequence of plans of a strategy, on this machine's version 1 groups."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent.cgroup import device_values as devices
from agent.cgroup.cpu import Bandwidth
from agent.cgroup.device_values import DeviceLine
from agent.cgroup.keys import (
    BURST,
    CPUS,
    MEMORY,
    QUOTA,
    SHARES,
    CgroupKey,
    CgroupValue,
    device_key,
)
from agent.cgroup.ledger import ChangeLedger
from agent.cgroup.write_plan import DesiredValue
from agent.qos.strategy import QosInputs, StrategyPlan
from agent.snapshot.cluster import ClusterView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.slo import NodeSloView
from tests.realgroups import RealGroups, needs_blkio, real_groups
from tests.unit.reconcile.scene import Scene
from tests.unit.reconcile.test_block_io import whole_disks

pytestmark = [needs_blkio, pytest.mark.root]

SEQUENCES, PLANS = 25, 6
MIB = 1 << 20


class AnyStrategy:
    """Wants what the test says."""

    name = "cpu_burst"

    def __init__(self) -> None:
        self.values: tuple[DesiredValue, ...] = ()

    def start(self) -> int:
        return 0

    def plan(self, inputs: QosInputs, state: int) -> tuple[StrategyPlan, int]:  # noqa: ARG002 - as its Protocol
        return StrategyPlan(values=self.values), state


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups("blkio") as created:
        yield created


def targets(scene: Scene) -> dict[tuple[str, CgroupKey], tuple[CgroupValue, ...]]:
    """Return the files of a pod and its containers, each with some values."""
    number = whole_disks()[0].number
    limits = tuple(DeviceLine((("", text),) if text else ()) for text in ("", "7", "1048576"))
    quotas = tuple(Bandwidth(quota_us) for quota_us in (-1, 20000, 50000, 100000))
    cpus = tuple(frozenset(one) for one in ({0}, {1}, {0, 1}))
    return {
        **{(group, QUOTA): quotas for group in (scene.pod, scene.container)},
        (scene.container, BURST): (0, 10000, 60000),
        **{(group, CPUS): cpus for group in (scene.pod, scene.container, scene.sandbox)},
        **{(group, SHARES): (2, 512, 4096) for group in (scene.pod, scene.container)},
        **{(group, MEMORY): (-1, 64 * MIB, 64 * MIB + 5) for group in (scene.pod,)},
        **{
            (scene.pod, device_key(file, number)): limits
            for file in (devices.READ_BPS, devices.WRITE_IOPS)
        },
    }


def test_files_equal_the_last_plan_or_the_refusal_is_recorded_and_all_is_restored(
    groups: RealGroups, tmp_path: Path
) -> None:
    refusals = 0
    for seed in range(SEQUENCES):
        chance, strategy = random.Random(seed), AnyStrategy()
        ledger = ChangeLedger(str(tmp_path / f"{seed}.log"), "boot")
        ledger.load()
        scene = Scene(groups, strategies=(strategy,), ledger=ledger)
        values = scene.reconciler.current_values(groups.layout)
        files = targets(scene)
        originals = {file: values.read_value(*file) for file in files}
        for number in range(PLANS + 1):
            desired = chance.sample(sorted(files, key=str), chance.randint(0, 8))
            strategy.values = tuple(
                DesiredValue(
                    cgroup=group,
                    key=key,
                    value=chance.choice(files[group, key]),
                    owner=strategy.name,
                )
                for group, key in (desired if number < PLANS else ())
            )
            now_s = scene.clock.monotonic()
            cluster = ClusterView(slo=SnapshotPart(NodeSloView(), now_s))
            scene.snapshot = msgspec.structs.replace(scene.snapshot, cluster=cluster)
            scene.cycle()
            recorded = {(audit.path, audit.key) for audit in scene.reconciler.audits if audit.errno}
            for value in strategy.values:
                current = values.read_value(value.cgroup, value.key)
                assert current is not None
                if not value.is_met(current):
                    paths = values.paths(value.cgroup, value.key)
                    assert any((path, value.key.name) in recorded for path in paths), (seed, value)
                    refusals += 1
        scene.clock.advance(700.0)  # what could not be restored at once is tried again
        cluster = ClusterView(slo=SnapshotPart(NodeSloView(), scene.clock.monotonic()))
        scene.snapshot = msgspec.structs.replace(scene.snapshot, cluster=cluster)
        scene.cycle()
        assert {file: values.read_value(*file) for file in files} == originals, seed
        assert ledger.entries == {}
        scene.reconciler.close()
    assert refusals  # the kernel refused some: the test is worth its time
