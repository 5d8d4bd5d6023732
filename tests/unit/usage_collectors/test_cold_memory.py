from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.cgroup.layout import detect_layout
from agent.clock import ManualClock
from agent.errors import HostFileError, ParseError
from agent.host.files import LiveHostFiles
from agent.snapshot.host_files import MAX_READ
from agent.snapshot.pod import ContainerView, KubeQos, PodView
from agent.snapshot.usage import CgroupUsage, ColdMemory, NodeUsage, UsageSample, hot_memory
from agent.usage.cold_memory import ColdMemoryCollector, parse_idle_page_stats
from agent.usage.collector import CollectorInput
from agent.usage.history import UsageHistory, UsageReportPolicy
from tests.cgroups import CgroupHost, container_id

A = container_id(1)
POD = PodView(
    uid="a",
    qos=KubeQos.BURSTABLE,
    cgroup="/kubepods/poda",
    containers=(ContainerView(id=A, cgroup=f"/kubepods/poda/{A}"),),
)
ROWS = [
    f"{clean}{kind}{evictable}{active}"
    for active in "ia"
    for evictable in "eu"
    for kind in "sf"
    for clean in "cd"
]
NO_BYTES = (0,) * 8


def stats(
    scans: int = 99,
    period: int = 5,
    hierarchy: int = 1,
    buckets: str = "1,2,5,15,30,60,120,240",
    rows: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    """Return a file as kidled prints it."""
    lines = [
        "# version: 1.0",
        f"# page_scans: {scans}",
        "# slab_scans: 0",
        f"# scan_period_in_seconds: {period}",
        f"# use_hierarchy: {hierarchy}",
        f"# buckets: {buckets}",
        "#",
        "#   _-----=> clean/dirty",
        "#  / _----=> swap/file",
        "# | / _---=> evict/unevict",
        "# || / _--=> inactive/active",
        "# ||| /",
        "# |||| / " + " ".join(f"{edge:>14}" for edge in ("[1,2)", "[2,5)", "[240,+inf)")),
        "# |||||",
    ]
    for name in (*ROWS, "slab"):
        counts = (rows or {}).get(name, NO_BYTES)
        lines.append(f"  {name:<10}" + "".join(f" {count:>14}" for count in counts))
    return "\n".join(lines) + "\n"


def ones(first: int) -> tuple[int, ...]:
    """Return eight counts: powers of ten times `first`."""
    return tuple(first * 10**i for i in range(8))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> CgroupHost:
    host = CgroupHost(tmp_path, version=request.param)
    host.write("/sys/kernel/mm/kidled/scan_period_in_seconds", "5\n")
    host.write("/sys/kernel/mm/kidled/use_hierarchy", "1\n")
    for cgroup in ("", "/kubepods/poda", f"/kubepods/poda/{A}"):
        put(host, cgroup, stats(rows={"cfei": ones(1)}))
    return host


def put(host: CgroupHost, cgroup: str, text: str) -> None:
    host.write(f"{host.points['memory']}{cgroup}/memory.idle_page_stats", text)


def collect(host: CgroupHost, files: LiveHostFiles | None = None) -> ColdMemory:
    collector = ColdMemoryCollector(files or host.files, ManualClock())
    value = collector.collect(
        CollectorInput(now_s=1.0, layout=detect_layout(host.files), pods=(POD,))
    )
    assert value is not None
    return value


def reasons(value: ColdMemory) -> list[str]:
    return [problem.reason for problem in value.problems]


def test_the_file_has_31_lines_without_its_margins() -> None:
    assert len(stats().strip().splitlines()) == 31


def test_cold_is_the_file_memory_of_the_inactive_list_in_the_last_three_buckets() -> None:
    each = {name: ones(i + 1) for i, name in enumerate(("cfei", "dfei", "cfui", "dfui"))}
    others = {name: ones(9) for name in (*ROWS, "slab") if name not in each}
    parsed = parse_idle_page_stats(stats(rows={**each, **others}).encode())
    assert parsed.cold_bytes() == (1 + 2 + 3 + 4) * 11_100_000


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        (5, 11_100_000),  # 60 scans
        (1, 0),  # 300 scans: older than every bucket's start
        (2, 10_000_000),  # 150 scans
        (120, 11_111_100),  # 3 scans
        (300, 11_111_111),
        (900, 11_111_111),
    ],
)
def test_cold_is_a_time_and_not_a_number_of_scans(period: int, expected: int) -> None:
    parsed = parse_idle_page_stats(stats(period=period, rows={"cfei": ones(1)}).encode())
    assert parsed.cold_bytes() == expected


GOOD = stats(rows={"cfei": ones(1)})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "max\n",
        GOOD[:-1],
        GOOD[: GOOD.index("slab")],
        GOOD[: len(GOOD) // 2],
        GOOD + GOOD,
        GOOD.replace("cfei", "xfei"),
        GOOD.replace("cfei", "dfei"),
        GOOD.replace(" 10000000", "-10000000"),
        GOOD.replace(" 10000000", " 1e7"),
        GOOD.replace(" 10000000", f" {10**19}"),
        GOOD.replace(" 10000000", ""),
        GOOD.replace("# page_scans: 99\n", ""),
        GOOD.replace("# use_hierarchy: 1", "# use_hierarchy: -1"),
        stats(buckets="1,2,5,15,30,60,120"),
        stats(buckets="1,2,4,8,16,32,64,128"),
    ],
)
def test_text_that_kidled_does_not_print_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_idle_page_stats(text.encode())


def test_rows_may_come_in_another_order_before_the_last() -> None:
    lines = GOOD.splitlines()
    reordered = [*lines[:14], *reversed(lines[14:30]), lines[30]]
    text = "\n".join(reordered) + "\n"
    assert parse_idle_page_stats(text.encode()).cold_bytes() == 11_100_000


def test_node_pods_and_containers_are_read(host: CgroupHost) -> None:
    put(host, f"/kubepods/poda/{A}", stats(rows={"dfui": ones(2)}))
    assert collect(host) == ColdMemory(
        node_bytes=11_100_000, pods={"a": 11_100_000}, containers={A: 22_200_000}
    )


def test_a_kernel_without_kidled_is_a_reason(tmp_path: Path) -> None:
    value = collect(CgroupHost(tmp_path))
    assert (value.node_bytes, value.pods, reasons(value)) == (
        None,
        {},
        ["KidledMissing", "DamonStatMissing"],
    )


def test_groups_without_the_file_are_a_reason(host: CgroupHost) -> None:
    for path in host.root.rglob("memory.idle_page_stats"):
        path.unlink()
    assert reasons(collect(host)) == ["IdlePageStatsMissing"]


def test_a_pod_that_goes_is_no_problem(host: CgroupHost) -> None:
    host.path(f"{host.points['memory']}/kubepods/poda/{A}/memory.idle_page_stats").unlink()
    value = collect(host)
    assert (value.containers, value.pods, reasons(value)) == ({}, {"a": 11_100_000}, [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (stats(period=0), "KidledOff"),
        (stats(scans=59), "TooFewScans"),
        ("", "IdlePageStatsUnreadable"),
    ],
)
def test_what_is_not_known_is_absent_with_a_reason(
    host: CgroupHost, text: str, reason: str
) -> None:
    for cgroup in ("", "/kubepods/poda", f"/kubepods/poda/{A}"):
        put(host, cgroup, text)
    value = collect(host)
    assert (value.node_bytes, value.pods, value.containers) == (None, {}, {})
    assert reasons(value) == [reason]


def test_without_hierarchy_only_containers_have_figures(host: CgroupHost) -> None:
    for cgroup in ("", "/kubepods/poda", f"/kubepods/poda/{A}"):
        put(host, cgroup, stats(hierarchy=0, rows={"cfei": ones(1)}))
    value = collect(host)
    assert (value.node_bytes, value.pods, value.containers) == (None, {}, {A: 11_100_000})
    assert reasons(value) == ["KidledWithoutHierarchy"]


class RefusingFiles(LiveHostFiles):
    """A host whose kernel answers EOPNOTSUPP."""

    def read(self, path: str, limit: int = MAX_READ) -> bytes:
        if path.endswith("memory.idle_page_stats"):
            raise HostFileError(path, 95)
        return super().read(path, limit)


def test_a_refusal_is_a_reason_and_no_value(host: CgroupHost) -> None:
    value = collect(host, RefusingFiles(str(host.root)))
    assert (value.node_bytes, value.pods, reasons(value)) == (None, {}, ["IdlePageStatsUnreadable"])


def test_the_cold_memory_of_host_applications_is_read_as_well(host: CgroupHost) -> None:
    put(host, "/host-best-effort/spark", stats(rows={"cfei": ones(2)}))
    layout = detect_layout(host.files)
    running = (("spark", "/host-best-effort/spark"), ("ended", "/host-best-effort/ended"))
    cycle = CollectorInput(now_s=1.0, layout=layout, pods=(POD,), applications=running)
    value = ColdMemoryCollector(host.files, ManualClock()).collect(cycle)
    assert value is not None
    assert (value.applications, value.problems) == ({"spark": 22_200_000}, ())


@pytest.mark.parametrize(
    ("with_cache", "cold", "expected"),
    [(10, 4, 6), (10, 10, 0), (10, 11, None), (None, 4, None), (10, None, None)],
)
def test_hot_memory(with_cache: int | None, cold: int | None, expected: int | None) -> None:
    assert hot_memory(with_cache, cold) == expected


def sample(cold: ColdMemory | None) -> UsageSample:
    use = CgroupUsage(cpu_cores=1.0, memory_bytes=100, memory_with_cache_bytes=400)
    return UsageSample(
        node=NodeUsage(cpu_cores=1.0, memory_bytes=1000, memory_with_cache_bytes=4000),
        pods={"a": use, "b": use},
        applications={"spark": use, "flink": use},
        cold_memory=cold,
    )


@pytest.mark.parametrize(
    ("policy", "node", "groups"),
    [
        ("usageWithHotPageCache", 3500.0, [350.0, 100.0]),  # of the second nothing is known
        ("usageWithPageCache", 4000.0, [400.0, 400.0]),
        ("usageWithoutPageCache", 1000.0, [100.0, 100.0]),
    ],
)
def test_a_report_has_the_memory_that_its_policy_names(
    policy: str, node: float, groups: list[float]
) -> None:
    history = UsageHistory()
    cold = ColdMemory(node_bytes=500, pods={"a": 50, "c": 1}, applications={"flink": 50})
    for second in range(300):
        history.add(float(second), sample(cold))
    report = history.report(300.0, UsageReportPolicy(memory=policy))
    assert report.node.memory_bytes == node
    assert [pod.use.memory_bytes for pod in report.pods] == groups
    assert [application.use.memory_bytes for application in report.applications] == groups
    assert dict(report.aggregates[0].node)["p95"].memory_bytes == node


def test_without_cold_memory_the_memory_without_page_cache_stands_in() -> None:
    history = UsageHistory()
    for second in range(300):
        history.add(float(second), sample(None))
    report = history.report(300.0, UsageReportPolicy(memory="usageWithHotPageCache"))
    assert report.node.memory_bytes == 1000.0
