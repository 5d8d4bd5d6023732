"""Masks, bandwidths and schemata: worked examples, and what the kernel accepts of any range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.config.containers import ResctrlSettings
from agent.containers.resctrl import parse_resctrl_request
from agent.resctrl.capabilities import (
    INFO_FILES,
    BandwidthAllocation,
    BandwidthUnit,
    CacheAllocation,
    Capabilities,
    build_capabilities,
)
from agent.resctrl.files import find_mount
from agent.resctrl.schemata import difference, format_schemata, overlay, parse_schemata
from agent.resctrl.values import (
    MaskError,
    bandwidth_value,
    cache_mask,
    class_values,
    percent_mask,
    pod_values,
)
from agent.snapshot.slo import ResctrlQos
from tests.resctrl.emulator import Resctrl
from tests.resctrl.machine import Machine

RECORDED = "    MB:0= 40;1= 30\n    L3:0=03f;1=03f\n"


@pytest.mark.parametrize(
    ("full", "start", "end", "mask"),
    [
        ("7ff", 0, 30, "f"),
        ("7ff", 10, 50, "3c"),
        ("3ff", 10, 80, "fe"),
        ("ff", 0, 100, "ff"),
        ("fffff", 0, 30, "3f"),
        ("fffff", 30, 100, "fffc0"),
        ("ffff", 50, 100, "ff00"),
        ("fff", 25, 75, "1f8"),
        ("3ff", 0, 30, "7"),
        ("3ff", 10, 85, "1fe"),
        ("7ff", 0, 50, "3f"),
        ("fff", 0, 30, "f"),
        pytest.param("7ff", 10, 15, "4", id="both ends round to one way: it is given"),
        pytest.param("7ff", 95, 100, "400", id="the last way"),
        pytest.param("7ff", 91, 95, "400", id="above the last way: shifted down"),
    ],
)
def test_mask_of_a_percent_range(full: str, start: int, end: int, mask: str) -> None:
    assert f"{percent_mask(int(full, 16), start, end):x}" == mask


def test_a_mask_has_at_least_the_bits_that_the_kernel_requires() -> None:
    assert percent_mask(0xFFFFF, 0, 5, min_bits=2) == 0x3
    assert percent_mask(0xFFFFF, 99, 100, min_bits=2) == 0xC0000


@pytest.mark.parametrize(
    ("full", "start", "end"), [(0x101, 0, 100), (0xFF, 30, 30), (0xFF, -10, 100), (0xFF, 0, 101)]
)
def test_a_range_that_does_not_rise_and_a_mask_with_gaps_are_errors(
    full: int, start: int, end: int
) -> None:
    with pytest.raises(MaskError):
        percent_mask(full, start, end)


def cache(mask: int, *, min_bits: int = 1, sparse: bool = False) -> CacheAllocation:
    return CacheAllocation(
        lines=("L3",),
        full_mask=mask,
        min_bits=min_bits,
        has_sparse_masks=sparse,
        closids=16,
        domains=(0, 1),
    )


def test_of_a_full_mask_with_gaps_the_longest_run_is_divided() -> None:
    assert cache_mask(cache(0xF03), 0, 50) == 0x300
    assert cache_mask(cache(0x101), 0, 100) == 0x1


def test_with_sparse_masks_any_of_the_bits_are_divided() -> None:
    assert cache_mask(cache(0xF03, sparse=True), 0, 50) == 0x103


@pytest.mark.parametrize(
    ("full", "start", "end", "mask"),
    [(0x7FF, 0, 30, 0x780), (0x7FF, 30, 100, 0x7F), (0x7FF, 0, 100, 0x7FF), (0xFF0, 0, 50, 0xF00)],
)
def test_a_range_that_is_counted_from_the_highest_bit(
    full: int, start: int, end: int, mask: int
) -> None:
    assert cache_mask(replace(cache(full), starts_high=True), start, end) == mask


ranges = st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda one: one[0] < one[1])


@given(st.integers(1, 20), ranges, ranges)
def test_ranges_overlap_by_as_many_ways_from_either_end(
    ways: int, one: tuple[int, int], other: tuple[int, int]
) -> None:
    low = cache((1 << ways) - 1)
    high = replace(low, starts_high=True)
    common = [cache_mask(end, *one) & cache_mask(end, *other) for end in (low, high)]
    assert common[0].bit_count() == common[1].bit_count()


@pytest.mark.parametrize(
    ("shared", "is_first", "starts_high"),
    [
        ("600", True, True),
        ("600", False, False),  # by default ranges are Koordinator's
        ("3", True, False),
        ("0", True, False),
        ("7ff", True, False),
        ("", True, False),
        ("nonsense", True, False),
    ],
)
def test_ranges_begin_at_the_ways_that_devices_use_where_a_setting_says_so(
    shared: str, is_first: bool, starts_high: bool
) -> None:
    texts = {"L3/cbm_mask": "7ff\n", "L3/num_closids": "16\n", "L3/shareable_bits": f"{shared}\n"}
    root = parse_schemata("L3:0=7ff\n")
    settings = ResctrlSettings(shared_ways_first=is_first)
    found = build_capabilities(texts, root, frozenset(), "GenuineIntel", settings)
    assert found.cache is not None
    assert found.cache.starts_high is starts_high


INTEL = BandwidthAllocation(
    unit=BandwidthUnit.PERCENT,
    minimum=10,
    granularity=10,
    unlimited=100,
    closids=8,
    domains=(0, 1),
)
AMD = BandwidthAllocation(
    unit=BandwidthUnit.EIGHTH_GBPS,
    unlimited=2048,
    domain_units=160,
    closids=16,
    domains=(0, 1),
)


@pytest.mark.parametrize(
    ("percent", "intel", "amd"),
    [
        (1, 10, 1),
        (5, 10, 8),
        (30, 30, 48),
        (35, 40, 56),
        (50, 50, 80),
        (80, 80, 128),
        (85, 90, 136),
        (91, 100, 145),
        (99, 100, 158),
        (100, 100, 2048),
    ],
)
def test_bandwidth_of_a_percentage(percent: int, intel: int, amd: int) -> None:
    assert bandwidth_value(INTEL, percent) == intel
    assert bandwidth_value(AMD, percent) == amd


@pytest.mark.parametrize("percent", [0, 101])
def test_a_class_percentage_out_of_range_changes_no_bandwidth(percent: int) -> None:
    qos = ResctrlQos(enable=True, mba_percent=percent)
    assert class_values(Capabilities(bandwidth=INTEL), qos) == {}


def test_throttling_that_is_not_linear_leaves_the_steps_to_the_kernel() -> None:
    steps = BandwidthAllocation(
        unit=BandwidthUnit.PERCENT,
        minimum=10,
        granularity=10,
        is_linear=False,
        unlimited=100,
        closids=8,
        domains=(0,),
    )
    assert bandwidth_value(steps, 35) == 35


def test_with_mba_mbps_a_percentage_is_one_of_the_bandwidth_of_a_domain() -> None:
    info = Resctrl(Machine(mba_mbps=True))
    root = parse_schemata(info.read("schemata"))
    texts = {"MB/num_closids": "8", "MB/min_bandwidth": "10", "MB/bandwidth_gran": "10"}
    capabilities = build_capabilities(texts, root, frozenset(("rw", "mba_MBps")), "GenuineIntel")
    assert capabilities.bandwidth is not None
    assert bandwidth_value(capabilities.bandwidth, 50) is None  # unknown
    assert bandwidth_value(capabilities.bandwidth, 100) == 4294967295


def test_schemata_are_read_as_the_kernel_prints_them() -> None:
    assert parse_schemata(RECORDED) == {"MB": {0: 40, 1: 30}, "L3": {0: 0x3F, 1: 0x3F}}


@pytest.mark.parametrize(
    "text", ["", "L3", "L3:0", "L3:x=1", "L3:0=zz", "L3:a:b", "MB:0=", ":0=1", "L3:0=" + "f" * 17]
)
def test_unreadable_items_are_left_out(text: str) -> None:
    assert not any(parse_schemata(text).values())


def test_lines_of_other_resources_are_never_part_of_the_values() -> None:
    text = f"SMBA:0=2048\nL3MAX:0=7ff\nL2:0=ff\n{RECORDED}"
    assert parse_schemata(text) == parse_schemata(RECORDED)


@pytest.mark.parametrize(
    ("found", "desired", "text"),
    [
        (RECORDED, {"L3": {0: 0x3F, 1: 0xF}}, "L3:1=f\n"),
        (RECORDED, {"L3": {0: 0x3F, 1: 0x3F}, "MB": {0: 40, 1: 30}}, ""),
        ("L3:0=ff;8=ff\n", {"L3": {0: 0xFF, 8: 0xF}}, "L3:8=f\n"),
        ("MB:0=100;1=100\nL3:0=ff;1=ff\n", {"MB": {0: 90, 1: 90}}, "MB:0=90;1=90\n"),
        ("L3:0=ff;1=ff\n", {"L3": {0: 0x3C, 1: 0x3C}}, "L3:0=3c;1=3c\n"),
    ],
)
def test_only_domains_that_differ_are_written(
    found: str, desired: dict[str, dict[int, int]], text: str
) -> None:
    assert format_schemata(difference(parse_schemata(found), desired)) == text


def test_the_same_mask_goes_to_code_and_data() -> None:
    two = CacheAllocation(lines=("L3CODE", "L3DATA"), full_mask=0x7FF, closids=8, domains=(0,))
    qos = ResctrlQos(enable=True, cat_range_start_percent=0, cat_range_end_percent=50)
    text = format_schemata(class_values(Capabilities(cache=two), qos))
    assert text == "L3CODE:0=3f\nL3DATA:0=3f\n"


def test_a_pod_s_single_caches_take_precedence_over_all_of_them() -> None:
    request = parse_resctrl_request(
        '{"llc":{"schemata":{"range":[20,80]},"schemataPerCache":[{"cacheID":1,"range":[20,50]}]},'
        '"mb":{"schemata":{"percent":20}}}'
    )
    values = pod_values(Capabilities(cache=cache(0x7FF), bandwidth=INTEL), request)
    assert values == {"L3": {0: 0x1F8, 1: 0x38}, "MB": {0: 20, 1: 20}}


def test_caches_that_a_pod_does_not_name_stay_those_of_the_root_group() -> None:
    request = parse_resctrl_request('{"llc":{"schemataPerCache":[{"cacheID":0,"range":[0,50]}]}}')
    values = pod_values(Capabilities(cache=cache(0xFF)), request)
    root = {"L3": {0: 0xFF, 1: 0xFF}}
    assert overlay(root, values) == {"L3": {0: 0xF, 1: 0xFF}}


masks = st.one_of(
    st.integers(1, 20).map(lambda ways: (1 << ways) - 1), st.integers(1, (1 << 20) - 1)
)


@given(full=masks, start=st.integers(0, 99), data=st.data(), sparse=st.booleans())
def test_every_valid_range_gives_a_mask_that_the_kernel_accepts(
    full: int, start: int, data: st.DataObject, sparse: bool
) -> None:
    end = data.draw(st.integers(start + 1, 100))
    longest = max(len(run) for run in f"{full:b}".split("0"))
    bits = full.bit_count() if sparse else longest
    min_bits = data.draw(st.integers(1, bits))
    mask = cache_mask(cache(full, min_bits=min_bits, sparse=sparse), start, end)
    assert mask.bit_count() >= min_bits
    assert mask & ~full == 0
    run = mask // (mask & -mask)
    assert sparse or run & (run + 1) == 0


@given(text=st.text(alphabet="L3MBCODEAT:=;0123456789abcdefx \n", max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for line, domains in parse_schemata(text).items():
        assert line in ("L3", "L3CODE", "L3DATA", "MB")
        assert all(value >= 0 for value in domains.values())


@given(
    values=st.dictionaries(
        st.sampled_from(["L3", "L3CODE", "L3DATA", "MB"]),
        st.dictionaries(st.integers(0, 300), st.integers(0, (1 << 32) - 1), min_size=1),
    )
)
def test_a_text_that_was_written_reads_back_the_same(values: dict[str, dict[int, int]]) -> None:
    assert parse_schemata(format_schemata(values)) == values


@given(text=st.text(alphabet="0123456789 :/-resctlxproc,w=_MBps\n\\", max_size=300))
def test_any_mount_table_is_read_without_an_error(text: str) -> None:
    mount = find_mount(text)
    assert mount is None or " - resctrl " in text


def test_the_mount_and_its_options_are_found_among_others() -> None:
    table = (
        "24 1 0:22 / /proc rw shared:12 - proc proc rw\n"
        "36 30 0:35 / /mnt/my\\040resctrl rw,relatime shared:9 master:1 - resctrl resctrl rw,cdp\n"
    )
    mount = find_mount(table)
    assert mount is not None
    assert (mount.point, mount.id) == ("/mnt/my resctrl", "36")
    assert mount.options == {"rw", "cdp"}


paths = st.sampled_from(
    [f"{folder}/{name}" for folder, names in INFO_FILES.items() for name in names]
)


@given(
    info=st.dictionaries(paths, st.text(alphabet="0123456789abcdef \n-x", max_size=20)),
    text=st.text(alphabet="L3MBCODEAT:=;0123456789abcdefx \n", max_size=100),
    vendor=st.sampled_from([None, "GenuineIntel", "AuthenticAMD"]),
    options=st.sampled_from([frozenset(), frozenset(("mba_MBps",))]),
    start=st.integers(0, 99),
    mba=st.integers(-1, 101),
)
def test_any_info_gives_values_of_existing_domains_or_an_error_of_the_mask(
    info: dict[str, str],
    text: str,
    vendor: str | None,
    options: frozenset[str],
    start: int,
    mba: int,
) -> None:
    root = parse_schemata(text)
    capabilities = build_capabilities(info, root, options, vendor)
    qos = ResctrlQos(
        enable=True, cat_range_start_percent=start, cat_range_end_percent=start + 1, mba_percent=mba
    )
    try:
        values = class_values(capabilities, qos)
    except MaskError:
        return
    for line, domains in values.items():
        assert domains.keys() <= root[line].keys()
