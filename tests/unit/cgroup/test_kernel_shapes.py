"""Files as kernels 4.19 to 6.12 print them, and damaged: figures are right or refused.

A file is built from true figures; then lines are dropped, doubled, moved, cut, or get values that
no counter has. A parser must return figures made of values that stand at their keys in the damaged
file, or refuse it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cgroup import usage_files
from agent.cgroup.usage_files import PAGE_BYTES
from agent.errors import ParseError
from agent.snapshot.usage import Pressure
from agent.usage.node_usage import parse_busy_ticks, parse_meminfo, parse_numa_meminfo

Values = Mapping[str, int]
Combine = Callable[[Values], object]

INVALID = ("max", "-1", "-9223372036854771712", str(1 << 64), "9" * 5000, "", "1e9", "0x10", "1.5")
LRU = ("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's file: its keys in order, those that a parser needs, and what it makes of them."""

    name: str
    parse: Callable[[bytes], object]
    keys: tuple[str, ...]
    needed: tuple[str, ...]
    combine: Combine
    line: str = "{key} {value}\n"
    partial: Callable[[Values], object] | None = None  # figures without all needed keys


def memory_v2(values: Values) -> object:
    used = values["inactive_anon"] + values["active_anon"] + values["unevictable"]
    return used, used + values["inactive_file"] + values["active_file"]


def memory_v1(values: Values) -> object:
    return memory_v2({key.removeprefix("total_"): value for key, value in values.items()})


def cpu_v2(values: Values) -> object:
    return values["usage_usec"] * 1000, (values["nr_periods"], values["nr_throttled"])


MEMORY_V2_KEYS = {
    "4.19": ("anon", "file", "kernel_stack", "slab", "sock", "shmem", "file_mapped", *LRU),
    "5.15": ("anon", "file", "kernel_stack", "pagetables", "percpu", "sock", "shmem", *LRU),
    "6.12": (
        *("anon", "file", "kernel", "kernel_stack", "pagetables", "sec_pagetables", "percpu"),
        *("sock", "vmalloc", "shmem", "zswap", "zswapped", "swapcached", "anon_thp", *LRU),
        *("slab_reclaimable", "slab", "workingset_refault_anon", "pgscan", "thp_fault_alloc"),
    ),
}
CPU_V2_KEYS = {
    "4.19": ("usage_usec", "user_usec", "system_usec", "nr_periods", "nr_throttled"),
    "6.12": (
        *("usage_usec", "user_usec", "system_usec", "nice_usec", "core_sched.force_idle_usec"),
        *("nr_periods", "nr_throttled", "throttled_usec", "nr_bursts", "burst_usec"),
    ),
}
TOTALS = tuple(f"total_{key}" for key in LRU)

SHAPES = (
    *(
        Shape(
            name=f"memory.stat v2 {kernel}",
            parse=usage_files.parse_memory_stat_v2,
            keys=keys,
            needed=LRU,
            combine=memory_v2,
        )
        for kernel, keys in MEMORY_V2_KEYS.items()
    ),
    *(
        Shape(
            name=f"cpu.stat v2 {kernel}",
            parse=usage_files.parse_cpu_stat_v2,
            keys=keys,
            needed=("usage_usec", "nr_periods", "nr_throttled"),
            combine=cpu_v2,
            partial=lambda values: (values["usage_usec"] * 1000, None),
        )
        for kernel, keys in CPU_V2_KEYS.items()
    ),
    Shape(
        name="memory.stat v1",
        parse=usage_files.parse_memory_stat_v1,
        keys=("cache", "rss", *LRU, "hierarchical_memory_limit", "total_cache", *TOTALS),
        needed=TOTALS,
        combine=memory_v1,
    ),
    Shape(
        name="cpu.stat v1",
        parse=usage_files.parse_throttling_v1,
        keys=("nr_periods", "nr_throttled", "throttled_time", "nr_bursts", "burst_time"),
        needed=("nr_periods", "nr_throttled"),
        combine=lambda values: (values["nr_periods"], values["nr_throttled"]),
    ),
    Shape(
        name="memory.numa_stat v1",
        parse=usage_files.parse_memory_numa_v1,
        keys=(
            *("total", "file", "anon", "unevictable"),
            *(f"hierarchical_{kind}" for kind in ("total", "file", "anon", "unevictable")),
        ),
        needed=("hierarchical_total", "hierarchical_anon", "hierarchical_unevictable"),
        combine=lambda values: (
            (values["hierarchical_anon"] + values["hierarchical_unevictable"]) * PAGE_BYTES,
            values["hierarchical_total"] * PAGE_BYTES,
        ),
        line="{key}={value} N0={value} N1=0\n",
    ),
    Shape(
        name="meminfo",
        parse=parse_meminfo,
        keys=("MemTotal:", "MemFree:", "MemAvailable:", "Buffers:", "Cached:"),
        needed=("MemTotal:", "MemFree:", "MemAvailable:"),
        combine=lambda values: tuple(
            1024 * values[f"Mem{k}:"] for k in ("Total", "Free", "Available")
        ),
        line="{key}       {value} kB\n",
        partial=lambda values: (1024 * values["MemTotal:"], 1024 * values["MemFree:"], None),
    ),
    Shape(
        name="node meminfo",
        parse=parse_numa_meminfo,
        keys=(
            *("MemTotal:", "MemFree:", "MemUsed:", "Active:", "Inactive:", "Active(anon):"),
            *("Inactive(anon):", "Active(file):", "Inactive(file):", "SReclaimable:"),
        ),
        needed=("MemTotal:", "MemFree:", "Active(file):", "Inactive(file):", "SReclaimable:"),
        combine=lambda values: (
            max(
                0,
                values["MemTotal:"] - sum(values[k] for k in values if k != "MemTotal:"),
            )
            * 1024
        ),
        line="Node 0 {key}  {value} kB\n",
    ),
)


def _damage(draw: st.DrawFn, lines: list[tuple[str, str]], other: str) -> None:
    """Drop, double, move or spoil one line, or turn the file around."""
    if not lines:
        return
    at = draw(st.integers(0, len(lines) - 1))
    match draw(st.sampled_from(("drop", "double", "move", "spoil", "turn"))):
        case "drop":
            del lines[at]
        case "double":
            lines.insert(at, (lines[at][0], other))
        case "move":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        case "spoil":
            lines[at] = (lines[at][0], draw(st.sampled_from(INVALID)))
        case _:
            lines.reverse()


@st.composite
def damaged(draw: st.DrawFn, shape: Shape) -> tuple[bytes, dict[str, list[int]]]:
    """Return a file and the values that stand at each key in it."""
    figures = st.one_of(
        st.integers(0, 1 << 40), st.integers(0, (1 << 64) - 1), st.just((1 << 64) - 1)
    )
    lines = [(key, str(draw(figures))) for key in shape.keys]
    for _ in range(draw(st.integers(0, 3))):
        _damage(draw, lines, str(draw(figures)))
    text = "".join(shape.line.format(key=key, value=value) for key, value in lines)
    if draw(st.booleans()):
        text = text[: draw(st.integers(0, len(text)))]
    standing: dict[str, list[int]] = {}
    for key, value in lines:
        if value.isdigit() and int(value[:40]) < 1 << 64:
            standing.setdefault(key, []).append(int(value[:40]))
    return text.encode(), standing


def possible_figures(shape: Shape, standing: Mapping[str, Sequence[int]]) -> Iterable[object]:
    """Yield what the parser may make of the values in the file."""
    groups = [standing.get(key, ()) for key in shape.needed]
    for values in itertools.product(*groups):
        yield shape.combine(dict(zip(shape.needed, values, strict=True)))
    if shape.partial is not None:
        some = [key for key in shape.needed if key in standing]
        for values in itertools.product(*(standing[key] for key in some)):
            try:
                yield shape.partial(dict(zip(some, values, strict=True)))
            except KeyError:
                continue


def plain(figures: object) -> object:
    """Return a struct's figures as a tuple."""
    return msgspec.structs.astuple(figures) if isinstance(figures, msgspec.Struct) else figures


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
@given(data=st.data())
def test_figures_are_those_at_their_keys_or_refused(shape: Shape, data: st.DataObject) -> None:
    text, standing = data.draw(damaged(shape))
    try:
        figures = plain(shape.parse(text))
    except ParseError:
        return
    assert figures in list(possible_figures(shape, standing))


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
def test_an_undamaged_file_is_read(shape: Shape) -> None:
    values = {key: 1000 >> at for at, key in enumerate(shape.keys)}
    values |= {key: 100 for key in shape.keys if key in ("MemAvailable:", "MemFree:")}
    text = "".join(shape.line.format(key=k, value=v) for k, v in values.items()).encode()
    assert plain(shape.parse(text)) == shape.combine({key: values[key] for key in shape.needed})


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.name for shape in SHAPES])
@pytest.mark.parametrize("value", INVALID)
def test_a_value_that_no_counter_has_is_refused(shape: Shape, value: str) -> None:
    key = shape.needed[0]
    lines = (shape.line.format(key=k, value=value if k == key else 7) for k in shape.keys)
    with pytest.raises(ParseError):
        shape.parse("".join(lines).encode())


MEMORY_TEXTS: tuple[tuple[Callable[[bytes], object], str], ...] = (
    (
        usage_files.parse_memory_stat_v1,
        "".join(f"{key} {{size}}\n" if "file" in key else f"{key} 0\n" for key in TOTALS),
    ),
    (
        usage_files.parse_memory_stat_v2,
        "".join(f"{key} 0\n" for key in LRU[:-1]) + "unevictable {size}\n",
    ),
    (
        lambda data: usage_files.parse_memory_stats_v2([data]),
        "".join(f"{key} 0\n" for key in LRU[:-1]) + "unevictable {size}\n",
    ),
    (
        usage_files.parse_memory_numa_v1,
        "\nhierarchical_total={pages}\nhierarchical_file=0\nhierarchical_anon={pages}\n"
        "hierarchical_unevictable=0\n",
    ),
    (usage_files.parse_numa_nodes_v1, "\nhierarchical_total=1 N0={pages}\n"),
    (usage_files.parse_numa_nodes_v2, "anon N0={size}\nfile N0=0\n"),
)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (usage_files.parse_counter, f"{1 << 64}\n"),
        (usage_files.parse_counter, "18446744073709551616\n"),
        (usage_files.parse_counter, "max\n"),
        (usage_files.parse_counter, "-1\n"),
        *(
            (parse, text.format(pages=pages, size=pages * PAGE_BYTES))
            for parse, text in MEMORY_TEXTS
            # a count below zero in 64 bits of bytes, and more than any address reaches
            for pages in (((1 << 64) - 4096) // PAGE_BYTES, (1 << 52) // PAGE_BYTES)
        ),
        (usage_files.parse_numa_nodes_v1, f"\nhierarchical_total=1 N0={1 << 63} N1=0\n"),
        (usage_files.parse_numa_nodes_v2, f"anon N0={1 << 64}\nfile N0=0\n"),
        (parse_meminfo, f"MemTotal: {1 << 42} kB\nMemFree: 5 kB\nMemAvailable: 6 kB\n"),
        (
            parse_numa_meminfo,
            f" MemTotal: {1 << 42} kB\n MemFree: 5 kB\n Active(file): 1 kB\n"
            " Inactive(file): 1 kB\n SReclaimable: 1 kB\n",
        ),
        (usage_files.parse_pressure, "some avg10=100.01 avg60=0.00 avg300=0.00 total=1\n"),
        (usage_files.parse_pressure, f"some avg10=1.00 avg60=0.00 avg300=0.00 total={1 << 64}\n"),
        (parse_busy_ticks, f"cpu  {1 << 63} {1 << 63} 0 9 0 0 0 0 0 0\n"),
        (parse_meminfo, "MemTotal: 10 kB\nMemFree: 11 kB\nMemAvailable: 5 kB\n"),
        (parse_meminfo, "MemTotal: 10 kB\nMemFree: 5 kB\nMemAvailable: 11 kB\n"),
        (parse_meminfo, "MemTotal: 0 kB\nMemFree: 0 kB\nMemAvailable: 0 kB\n"),
    ],
)
def test_figures_that_no_machine_has_are_refused(
    parse: Callable[[bytes], object], text: str
) -> None:
    with pytest.raises(ParseError):
        parse(text.encode())


NUMA_NODES = st.dictionaries(st.integers(0, 1023), st.integers(0, 1 << 50), min_size=1, max_size=4)


@given(anon=NUMA_NODES, file=st.integers(0, 1 << 50), order=st.permutations(range(4)))
def test_memory_of_numa_nodes_is_anonymous_and_file_memory_in_any_order_of_lines(
    anon: dict[int, int], file: int, order: list[int]
) -> None:
    lines = [
        "anon" + "".join(f" N{node}={size}" for node, size in anon.items()),
        "file" + "".join(f" N{node}={file}" for node in anon),
        "file_mapped" + "".join(f" N{node}=5" for node in anon),
        "workingset_refault_anon" + "".join(f" N{node}=5" for node in anon),
    ]
    text = "".join(f"{lines[at]}\n" for at in order).encode()
    expected = {node: size + file for node, size in anon.items()}
    assert usage_files.parse_numa_nodes_v2(text) == expected


PERCENTS = st.integers(0, 10000)
PSI = st.tuples(PERCENTS, st.integers(0, (1 << 64) - 1))


@given(some=PSI, full=st.none() | PSI, is_reversed=st.booleans(), cut=st.integers(0, 200))
def test_pressure_is_that_of_its_lines_or_refused(
    some: tuple[int, int], full: tuple[int, int] | None, is_reversed: bool, cut: int
) -> None:
    lines = [
        f"{kind} avg10={avg // 100}.{avg % 100:02} avg60=0.00 avg300=0.00 total={total}\n"
        for kind, (avg, total) in (("some", some), ("full", full or (0, 0)))
        if kind == "some" or full is not None
    ]
    text = "".join(reversed(lines) if is_reversed else lines)
    whole = Pressure(
        some_avg10=some[0] / 100,
        some_total_us=some[1],
        full_avg10=None if full is None else full[0] / 100,
        full_total_us=None if full is None else full[1],
    )
    assert usage_files.parse_pressure(text.encode()) == whole
    try:
        part = usage_files.parse_pressure(text[: len(text) - cut].encode())
    except ParseError:
        return
    without_full = msgspec.structs.replace(whole, full_avg10=None, full_total_us=None)
    assert part in (whole, without_full)


TICKS = st.integers(0, 1 << 40)


@given(
    st.lists(st.lists(TICKS, min_size=10, max_size=10), min_size=1, max_size=5),
    st.integers(0, 400),
)
def test_busy_ticks_are_those_of_each_line_or_refused(rows: list[list[int]], cut: int) -> None:
    names = ["cpu ", *(f"cpu{number}" for number in range(len(rows) - 1))]
    text = "".join(
        f"{name} {' '.join(map(str, row))}\n" for name, row in zip(names, rows, strict=True)
    )
    text += "intr 5 6\nctxt 7\n"
    cpus: list[int | None] = [None, *range(len(rows) - 1)]
    busy = (sum(row[:3]) + sum(row[5:7]) for row in rows)
    expected = dict(zip(cpus, busy, strict=True))
    assert parse_busy_ticks(text.encode()) == expected
    try:
        part = parse_busy_ticks(text[: len(text) - cut].encode())
    except ParseError:
        return
    assert part.items() <= expected.items()
