"""What a container is created with, and what the loops then want of the same files, is the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.containers.cpu_quota import RATIO
from tests.captures import needs_shared
from tests.contract.koordlet_files import RUNS, initial, run_of
from tests.contract.qos.koordlet_node import FILES, RecordedNode, best_effort_groups
from tests.realgroups import RealGroups, needs_v1, real_groups

pytestmark = [needs_v1, needs_shared, pytest.mark.root]

BURST = "cpu.cfs_burst_us"  # no runtime sets it
CPU_SET = "cpuset.cpus"


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        yield created


def values(node: RecordedNode) -> dict[tuple[str, str], str]:
    """Return the files of pods and containers that a runtime or the kubelet sets.

    The CPUs of best-effort groups belong to the strategy that suppresses them.
    """
    suppressed = best_effort_groups(node.pods)
    return {
        (group, file): node.read(group, file)
        for group in node.paths
        for file in FILES
        if file != BURST
        and group not in ("kubepods", "burstable", "besteffort")
        and not (file == CPU_SET and group in suppressed)
    }


@pytest.mark.parametrize("ratio", ["", "1.2"])
@pytest.mark.parametrize("name", RUNS)
def test_loops_change_nothing_of_what_a_container_was_created_with(
    groups: RealGroups, name: str, ratio: str
) -> None:
    node = RecordedNode(groups, {RATIO: ratio} if ratio else None)
    spec = run_of(name).nodeslo
    node.create(spec)
    created = values(node)
    node.run(spec, 15)
    assert values(node) == created


def test_each_class_of_pod_has_values_that_the_agent_gave_it(groups: RealGroups) -> None:
    node = RecordedNode(groups, {RATIO: "1.2"})
    node.create({})
    changed = {
        group for (group, file), value in values(node).items() if value != initial()[group][file]
    }
    for group in (
        "lsr-pinned/a",
        "be-batch",
        "be-batch/a",
        "be-two/a",
        "be-tiny/a",
        "ls-limited/a",
    ):
        assert group in changed


def test_restoring_gives_what_the_kubelet_requested(groups: RealGroups) -> None:
    node = RecordedNode(groups, {RATIO: "1.2"})
    spec = run_of("burst only, 100").nodeslo
    node.create(spec)
    node.run(spec, 3)
    for mode in node.modes:
        node.modes[mode] = "off"
    node.run({}, 3)
    assert not node.ledger.entries
    for group in node.paths:
        for file in FILES:
            assert node.read(group, file) == initial()[group][file], (group, file)
