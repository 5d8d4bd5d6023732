"""Which values count, which are refused, and what stands instead."""

from __future__ import annotations

import pytest

from agent.slo.overlay import overlay_spec
from agent.snapshot.slo import MAX_INVALID_FIELDS, NODE_SLO_DEFAULTS
from tests.unit.slo.tables import BE, CHOICES, LS, RANGES
from tests.unit.slo.wire import Tree, at, nested, to_wire

FIELDS = [field for field, _, _ in RANGES] + [field for field, _ in CHOICES]


# thresholds of evictions by usage: 0 is in the range, and evicts nobody
ABOVE_ZERO = (f"{BE}.memoryEvictThresholdPercent", f"{BE}.cpuEvictThresholdPercent")


def spec_with(field: str, value: object) -> Tree:
    """A spec with one value, its part switched on so that the value shows."""
    spec = nested(field, value)
    if field.startswith(LS):
        part = field.split(".")[2]
        spec["resourceQOSStrategy"]["lsClass"][part]["enable"] = True
    return spec


@pytest.mark.parametrize(("field", "low", "high"), RANGES, ids=[row[0] for row in RANGES])
def test_both_ends_of_a_range_count(field: str, low: int, high: int | None) -> None:
    for value in (low, 2**31 if high is None else high):
        result = overlay_spec(spec_with(field, value))
        assert at(to_wire(result.slo), field) == value
        assert result.refused_count == (value == 0 and field in ABOVE_ZERO)


@pytest.mark.parametrize(("field", "low", "high"), RANGES, ids=[row[0] for row in RANGES])
def test_what_is_beyond_a_range_is_refused_and_the_default_stands(
    field: str, low: int, high: int | None
) -> None:
    plain = to_wire(overlay_spec(spec_with(field, None)).slo)
    for value in (low - 1, 2**63 if high is None else high + 1):
        result = overlay_spec(spec_with(field, value))
        assert to_wire(result.slo) == plain
        assert result.refused_count == 1
        assert result.refused[0].path.startswith(f"spec.{field.rpartition('.')[0]}.")


@pytest.mark.parametrize(("field", "choices"), CHOICES, ids=[row[0] for row in CHOICES])
def test_the_choices_count_and_no_others(field: str, choices: tuple[str, ...]) -> None:
    for choice in choices:
        assert at(to_wire(overlay_spec(nested(field, choice)).slo), field) == choice
    for other in ("Cpuset", "x", 1, ["none"]):
        result = overlay_spec(nested(field, other))
        assert result.slo == NODE_SLO_DEFAULTS
        assert [refusal.path for refusal in result.refused] == [f"spec.{field}"]


@pytest.mark.parametrize("field", [field for field, _ in CHOICES])
def test_an_empty_choice_is_none_at_all(field: str) -> None:
    result = overlay_spec(nested(field, ""))
    assert (result.slo, result.refused) == (NODE_SLO_DEFAULTS, ())


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [True, "65", 1.5, [], {}], ids=str)
def test_values_of_a_wrong_type_are_refused_one_by_one(field: str, value: object) -> None:
    if "networkQOS" in field and value == "65":
        return  # a quantity
    spec = nested(field, value)
    spec.setdefault("cpuBurstStrategy", {}).setdefault("policy", "auto")
    result = overlay_spec(spec)
    assert [refusal.path for refusal in result.refused] == [f"spec.{field}"]
    if field != "cpuBurstStrategy.policy":
        assert result.slo.cpu_burst.policy == "auto"


@pytest.mark.parametrize("field", FIELDS)
def test_null_is_absent(field: str) -> None:
    result = overlay_spec(nested(field, None))
    assert (result.slo, result.refused) == (NODE_SLO_DEFAULTS, ())


@pytest.mark.parametrize("value", [5, "x", [], True], ids=str)
@pytest.mark.parametrize(
    "part", ["cpuBurstStrategy", "resourceQOSStrategy", LS, f"{LS}.memoryQOS", f"{LS}.blkioQOS"]
)
def test_a_part_that_is_no_object_is_refused_alone(part: str, value: object) -> None:
    spec = {**nested(part, value), BE: {"enable": True}}
    result = overlay_spec(spec)
    assert [refusal.path for refusal in result.refused] == [f"spec.{part}"]
    assert result.slo.thresholds.enable


@pytest.mark.parametrize(
    ("given", "refused", "stands"),
    [
        ({"memoryEvictThresholdPercent": 60, "memoryEvictLowerPercent": 60}, "memoryEvict", None),
        ({"memoryEvictLowerPercent": 80}, "memoryEvict", None),
        ({"memoryEvictThresholdPercent": 1}, "", -1),
        ({"memoryEvictLowerPercent": 0}, "", 0),
        ({"memoryEvictLowerPercent": -1}, "memoryEvict", 68),
        ({"memoryEvictLowerPercent": 101}, "memoryEvict", 68),
        ({"memoryEvictThresholdPercent": 130, "memoryEvictLowerPercent": 69}, "", 69),
        ({"memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 79}, "", 79),
    ],
)
def test_a_lower_limit_that_is_not_below_its_threshold_evicts_nobody(
    given: Tree, refused: str, stands: int | None
) -> None:
    result = overlay_spec({BE: given})
    assert result.slo.thresholds.memory_evict_until_percent == stands
    lower = [refusal.path for refusal in result.refused if "Lower" in refusal.path]
    assert lower == ([f"spec.{BE}.{refused}LowerPercent"] if refused else [])


@pytest.mark.parametrize("resource", ["memory", "cpu"])
def test_a_threshold_of_zero_which_every_node_exceeds_evicts_nobody(resource: str) -> None:
    result = overlay_spec({BE: {f"{resource}EvictThresholdPercent": 0}})
    (refusal,) = result.refused
    assert refusal.path == f"spec.{BE}.{resource}EvictThresholdPercent"
    assert "nobody is evicted" in refusal.why
    thresholds = result.slo.thresholds
    assert getattr(thresholds, f"{resource}_evict_until_percent") is None


@pytest.mark.parametrize(
    "pair",
    [
        ("memoryAllocatableEvictLowerPercent", "memoryAllocatableEvictThresholdPercent"),
        ("cpuAllocatableEvictLowerPercent", "cpuAllocatableEvictThresholdPercent"),
    ],
)
def test_every_pair_of_limits_is_compared(pair: tuple[str, str]) -> None:
    lower, upper = pair
    result = overlay_spec({BE: {lower: 50, upper: 50}})
    assert [refusal.path for refusal in result.refused] == [f"spec.{BE}.{lower}"]
    wire = to_wire(result.slo)[BE]
    assert (wire[lower], wire[upper]) == (None, 50)
    assert overlay_spec({BE: {lower: 49, upper: 50}}).refused == ()
    assert overlay_spec({BE: {lower: 99}}).refused == ()  # has no effect, but is not wrong


@pytest.mark.parametrize(
    ("threshold", "lower", "stands"),
    [(None, 50, None), (60, None, 58), (60, 50, 50), (60, 60, None)],
)
def test_eviction_for_cpu_needs_a_threshold_above_its_lower_limit(
    threshold: int | None, lower: int | None, stands: int | None
) -> None:
    result = overlay_spec(
        {BE: {"cpuEvictThresholdPercent": threshold, "cpuEvictLowerPercent": lower}}
    )
    assert result.slo.thresholds.cpu_evict_until_percent == stands
    assert result.refused_count == (threshold == lower)


@pytest.mark.parametrize(("lower", "stands"), [(49, 49), (50, 50), (51, None)])
def test_satisfaction_may_be_configured_up_to_where_eviction_begins(
    lower: int, stands: int | None
) -> None:
    names = ("cpuEvictBESatisfactionLowerPercent", "cpuEvictBESatisfactionUpperPercent")
    result = overlay_spec({BE: dict(zip(names, (lower, 50), strict=True))})
    assert result.slo.thresholds.cpu_evict_satisfaction_lower_percent == stands
    assert result.refused_count == (stands is None)


@pytest.mark.parametrize(
    ("given", "stands", "refusals"),
    [
        ({"catRangeStartPercent": 50, "catRangeEndPercent": 50}, (0, 30), 1),
        ({"catRangeStartPercent": 30}, (0, 30), 1),
        ({"catRangeStartPercent": 60, "catRangeEndPercent": 40}, (0, 30), 1),
        ({"catRangeEndPercent": 0}, (0, 30), 1),
        ({"catRangeStartPercent": 29}, (29, 30), 0),
        ({"catRangeStartPercent": 40, "catRangeEndPercent": 101}, (0, 30), 2),
    ],
)
def test_an_empty_range_of_the_cache_is_refused(
    given: Tree, stands: tuple[int, int], refusals: int
) -> None:
    result = overlay_spec(
        nested("resourceQOSStrategy.beClass.resctrlQOS", {"enable": True, **given})
    )
    resctrl = result.slo.resource_qos.be_class.resctrl
    assert (resctrl.cat_range_start_percent, resctrl.cat_range_end_percent) == stands
    assert result.refused_count == refusals


def test_a_refusal_says_where_what_and_the_range() -> None:
    (refusal,) = overlay_spec(nested(f"{BE}.cpuSuppressThresholdPercent", 130)).refused
    assert refusal.path == f"spec.{BE}.cpuSuppressThresholdPercent"
    assert refusal.why == "must be a whole number from 0 to 100, is 130"


@pytest.mark.parametrize(
    "value",
    ["x" * 9999, "\x1b[31m\n" * 99, "\ud800" * 99, 10**5000, 1e300],
    ids=["long", "control", "surrogates", "huge", "float"],
)
def test_a_refusal_shows_little_of_a_foreign_value(value: object) -> None:
    (refusal,) = overlay_spec(nested(f"{BE}.cpuSuppressThresholdPercent", value)).refused
    assert len(refusal.why) < 100
    assert refusal.why.isprintable()
    assert refusal.why.isascii()


def test_unknown_fields_of_a_newer_manager_are_counted_and_change_nothing() -> None:
    spec = {
        "newStrategy": {"a": {"b": 1}},
        BE: {"newPercent": 5},
        "resourceQOSStrategy": {"newClass": {}, "lsClass": {"newQOS": {}, "cpuQOS": {"x": 0}}},
    }
    result = overlay_spec(spec)
    assert (result.slo, result.refused, result.unknown_fields) == (NODE_SLO_DEFAULTS, (), 5)


def test_refusals_are_reported_up_to_a_bound_and_counted_beyond_it() -> None:
    limits = {"readIOPS": -1, "writeIOPS": -1, "readBPS": -1, "writeBPS": -1}
    blocks = [{"name": "sda", "type": "device", "ioCfg": limits}] * 20
    result = overlay_spec(nested(f"{LS}.blkioQOS.blocks", blocks))
    assert (len(result.refused), result.refused_count) == (MAX_INVALID_FIELDS, 80)
