"""Every file that a real koordlet left on a real kernel, against what the whole agent leaves.

A difference must have a cause in `CAUSES`, each of which is a rule about the group, the file and
both values: nothing else may differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec
import pytest

from agent.slo.overlay import overlay_spec
from agent.snapshot.slo import CpuBurst, ResourceThresholds
from tests.captures import needs_shared
from tests.contract.koordlet_files import RUNS, Run, initial, record, run_of
from tests.contract.qos.koordlet_node import CPUS, FILES, RecordedNode, best_effort_groups
from tests.realgroups import RealGroups, needs_v1, real_groups

pytestmark = [needs_v1, needs_shared, pytest.mark.root]

SECONDS = 75  # as in the recording
QUOTA, BURST, CPU_SET = "cpu.cfs_quota_us", "cpu.cfs_burst_us", "cpuset.cpus"
QUOTA_FLOOR_US = 2000
QUOTA_STEP_US = CPUS * 100_000 // 10  # a tenth of the node: how much a quota grows at once
UNLIMITED = "-1"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One file in which both differ."""

    group: str
    file: str
    before: str
    theirs: str
    ours: str


Rule = Callable[["Recorded", Difference], bool]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What rules look at besides the file."""

    run: Run
    burst: CpuBurst
    thresholds: ResourceThresholds
    best_effort: frozenset[str]


def recovers_sets_that_nothing_changed(node: Recorded, one: Difference) -> bool:
    """While suppression by CPUs is off, koordlet narrows best-effort sets to all CPUs but LSE's.

    The agent restores what it changed, and changed nothing.
    """
    is_off = not node.thresholds.enable or node.thresholds.cpu_suppress_policy != "cpuset"
    return (
        is_off
        and one.file == CPU_SET
        and one.group in node.best_effort
        and ((one.theirs, one.ours) == ("1", one.before))
    )


def wants_more_cpus_than_there_are(node: Recorded, one: Difference) -> bool:
    """Koordlet changes nothing if fewer CPUs are free than it wants; the agent takes those."""
    is_on = node.thresholds.enable and node.thresholds.cpu_suppress_policy == "cpuset"
    return (
        is_on
        and one.file == CPU_SET
        and one.group in node.best_effort
        and ((one.theirs, one.ours) == (one.before, "1"))
    )


def asks_for_more_burst_than_quota(node: Recorded, one: Difference) -> bool:
    """The kernel refuses a burst above the quota: koordlet changes nothing, the agent cuts it.

    An unlimited pod takes any burst: there koordlet has the whole sum, the agent the sum of what
    its containers have.
    """
    if one.file != BURST or node.burst.policy not in ("auto", "cpuBurstOnly"):
        return False
    quota = initial()[one.group][QUOTA]
    if quota == UNLIMITED:
        parts = (
            int(initial()[name][QUOTA])
            for name in initial()
            if name.startswith(f"{one.group}/") and initial()[name][QUOTA] != UNLIMITED
        )
        total = sum(parts)
        desired = total * node.burst.cpu_burst_percent // 100
        return (int(one.theirs), int(one.ours)) == (desired, total) and desired > total
    desired = int(quota) * node.burst.cpu_burst_percent // 100
    return desired > int(quota) and (one.theirs, one.ours) == (one.before, quota)


def depends_on_the_load_of_the_moment(node: Recorded, one: Difference) -> bool:
    """The quota of best-effort pods: both within one step of growth, and above the floor."""
    is_on = node.thresholds.enable and node.thresholds.cpu_suppress_policy == "cfsQuota"
    if not is_on or (one.group, one.file) != ("besteffort", QUOTA) or one.ours == UNLIMITED:
        return False
    own_values, theirs = int(one.ours), int(one.theirs)
    most = CPUS * 1000 * node.thresholds.cpu_suppress_threshold_percent
    return QUOTA_FLOOR_US <= own_values <= most and abs(own_values - theirs) <= QUOTA_STEP_US


CAUSES: tuple[Rule, ...] = (
    recovers_sets_that_nothing_changed,
    wants_more_cpus_than_there_are,
    asks_for_more_burst_than_quota,
    depends_on_the_load_of_the_moment,
)


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    with real_groups() as created:
        if created.get(created.root, CPU_SET) != f"0-{CPUS - 1}":
            pytest.skip("the recording is of a machine with two CPUs")
        yield created


def compare(groups: RealGroups, name: str) -> tuple[Counter[str], list[Difference]]:
    """Return how many files each cause explains, equal ones included, and what none explains."""
    run, node = run_of(name), RecordedNode(groups)
    node.run(run.nodeslo, SECONDS)
    slo = overlay_spec(run.nodeslo).slo
    recorded = Recorded(
        run=run,
        burst=slo.cpu_burst,
        thresholds=slo.thresholds,
        best_effort=best_effort_groups(node.pods),
    )
    counts: Counter[str] = Counter()
    unexplained = []
    for group in node.paths:
        for file in FILES:
            one = Difference(
                group=group,
                file=file,
                before=initial()[group][file],
                theirs=run.after(group, file),
                ours=node.read(group, file),
            )
            cause = next((rule for rule in CAUSES if rule(recorded, one)), None)
            if one.ours == one.theirs:
                counts["equal"] += 1
            elif cause is not None:
                counts[cause.__name__] += 1
            else:
                unexplained.append(one)
    return counts, unexplained


# by run: files that differ, by cause; all others of 36 groups x 8 files are equal
UNTOUCHED_SETS = {"recovers_sets_that_nothing_changed": 12}
EXPECTED: Mapping[str, Mapping[str, int]] = {
    "defaults": UNTOUCHED_SETS,
    "suppress by cpuset": {"wants_more_cpus_than_there_are": 12},
    "suppress by quota": {**UNTOUCHED_SETS, "depends_on_the_load_of_the_moment": 1},
    "suppress by quota, low threshold": {
        **UNTOUCHED_SETS,
        "depends_on_the_load_of_the_moment": 1,
    },
    "burst auto": {**UNTOUCHED_SETS, "asks_for_more_burst_than_quota": 11},
    "burst only, 100": UNTOUCHED_SETS,
    "qos classes": UNTOUCHED_SETS,
}


@pytest.mark.parametrize("name", RUNS)
def test_each_file_is_as_koordlet_left_it_or_differs_for_a_known_cause(
    groups: RealGroups, name: str
) -> None:
    counts, unexplained = compare(groups, name)
    assert not unexplained
    equal = counts.pop("equal")
    assert counts == EXPECTED[name]
    assert equal + counts.total() == 36 * len(FILES)


def test_every_run_and_every_file_that_koordlet_changed_is_compared() -> None:
    runs = msgspec.convert(record()["runs"], list[Run])
    assert tuple(run.name for run in runs) == RUNS
    recorded = {file for files in initial().values() for file in files}
    changed = {file for run in runs for files in run.changed.values() for file in files}
    assert changed < set(FILES) < recorded
    assert all(not files[file] for files in initial().values() for file in recorded - set(FILES))


def test_restoring_after_a_run_leaves_the_files_of_the_kubelet(groups: RealGroups) -> None:
    node = RecordedNode(groups)
    before = {(group, file): node.read(group, file) for group in node.paths for file in FILES}
    node.run(run_of("burst only, 100").nodeslo, 3)
    assert {(group, file): node.read(group, file) for group, file in before} != before
    for mode in node.modes:
        node.modes[mode] = "off"
    node.run({}, 3)
    assert {(group, file): node.read(group, file) for group, file in before} == before
    assert not node.ledger.entries
