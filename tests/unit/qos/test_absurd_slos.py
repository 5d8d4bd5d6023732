"""A NodeSLO with absurd values: no strategy fails, files stay sound, and all are restored."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cgroup.cpu import Bandwidth
from agent.cgroup.keys import CPUS, QUOTA
from agent.slo.status import build_slo_view
from agent.snapshot.self_check import StrategyState
from agent.snapshot.slo import NodeSloView
from tests.unit.qos.enforced_node import DISK, EnforcedNode
from tests.unit.slo.tables import CHOICES, RANGES
from tests.unit.slo.test_hostile import specs

EXTREMES = (0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 2**64, 10**30, 1e308, 0.5, "7", True)
CLASSES = ("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")
SWITCHES = ("resourceUsedThresholdWithBE", *(f"resourceQOSStrategy.{one}" for one in CLASSES))
PARTS = ("cpuQOS", "memoryQOS", "resctrlQOS", "blkioQOS")
IO_FIELDS = (
    *("readIOPS", "writeIOPS", "readBPS", "writeBPS", "ioWeightPercent", "readLatency"),
    *("writeLatency", "readLatencyPercent", "modelReadBPS", "modelWriteRandIOPS"),
)

GROUPS = (
    *("/kubepods", "/kubepods/burstable", "/kubepods/besteffort", "/kubepods/burstable/podpod0"),
    "/kubepods/besteffort/podpod1",
)
NAMES = (
    *(QUOTA.v2, "cpu.max.burst", "cpu.idle", "cpuset.cpus.effective", "memory.min", "memory.low"),
    *("memory.high", "memory.max", "memory.oom.group", "io.max"),
)
FILES = (
    *(f"{group}/{name}" for group in GROUPS for name in NAMES),
    *("/io.cost.qos", "/io.cost.model"),
)


def put(tree: dict[str, Any], path: str, value: object) -> None:
    """Set a field of nested objects by its dotted path."""
    *above, last = path.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
    tree[last] = value


@st.composite
def absurd_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Return a spec with all switches on, and extremes of any fields in any classes."""
    spec: dict[str, Any] = {}
    for name in SWITCHES:
        put(spec, f"{name}.enable", True)
        for part in PARTS if "Class" in name else ():
            put(spec, f"{name}.{part}.enable", True)
    for field, low, high in draw(st.lists(st.sampled_from(RANGES), max_size=12)):
        ends = (low, low if high is None else high, 2**63 - 1 if high is None else high)
        name = field.replace("lsClass", draw(st.sampled_from(CLASSES[:4])))
        put(spec, name, draw(st.sampled_from((*ends, *EXTREMES))))
    for field, choices in CHOICES:
        put(spec, field, draw(st.sampled_from((*choices, "", "other"))))
    put(spec, "systemStrategy.schedFeatures", {"WAKE": False, "X\nY": True, "": 3})
    io = {name: draw(st.sampled_from(EXTREMES)) for name in IO_FIELDS}
    block = {"name": draw(st.sampled_from((DISK, "", "../x"))), "ioCfg": io}
    put(spec, "resourceQOSStrategy.beClass.blkioQOS.blocks", [block])
    put(spec, "resourceQOSStrategy.cgroupRoot.blkioQOS.blocks", [block])
    return spec


@settings(max_examples=50, deadline=None)
@given(st.lists(absurd_specs() | specs, min_size=1, max_size=4), st.floats(0.0, 64.0))
def test_no_strategy_fails_the_files_stay_sound_and_all_is_restored(
    series: list[dict[str, Any]], cores: float
) -> None:
    node = EnforcedNode()
    before = {path: node.kernel.read(path) for path in FILES}
    node.cores = cores
    for spec in series:
        node.slo = build_slo_view({"spec": spec}, node.slo)
        for _ in range(3):
            node.cycle()
            failed = [status for status in node.statuses if status.state is StrategyState.FAILED]
            assert failed == []
            for one in node.desired:
                one.key.check(2, one.value)  # raises for a value that no kernel takes
                assert one.key is not CPUS or one.value
                if isinstance(one.value, Bandwidth):
                    assert one.value.quota_us == -1 or one.value.quota_us >= 1000
    node.slo = NodeSloView()
    for _ in range(3):
        node.cycle(70.0)
    assert {path: node.kernel.read(path) for path in FILES} == before
    assert node.ledger.entries == {}
