"""Specs as no manager would write them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.slo.decoder import MAX_APPLICATIONS, MAX_EXTENSIONS, MAX_FEATURES
from agent.slo.overlay import overlay_spec
from agent.slo.status import build_slo_view
from agent.snapshot.slo import MAX_INVALID_FIELDS, NodeSlo, NodeSloView
from tests.unit.slo.tables import BE, CHOICES, RANGES
from tests.unit.slo.wire import to_wire

LOWER = f"{BE}.memoryEvictLowerPercent"
FIELDS = (LOWER, *(field for field, _, _ in RANGES), *(field for field, _ in CHOICES))

some = settings(max_examples=60)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 101)
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=12)
    | st.sampled_from(("", "..", "a/../b", "/", "1Gi", "-5", "auto", "cpuset", "device", "LS"))
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
numbers = st.integers(-2, 102) | anything
classes = st.dictionaries(
    st.sampled_from(("cpuQOS", "memoryQOS", "resctrlQOS", "networkQOS", "blkioQOS")),
    anything
    | st.dictionaries(
        st.sampled_from(
            sorted({"enable", "blocks", "other", *(field.split(".")[-1] for field, _, _ in RANGES)})
        ),
        st.booleans() | numbers,
    ),
)
applications = st.lists(
    anything
    | st.fixed_dictionaries(
        {"name": st.sampled_from("abc") | scalars},
        optional={
            "qos": st.sampled_from(("LS", "BE", "x")) | anything,
            "priority": anything,
            "cgroupPath": anything
            | st.dictionaries(st.sampled_from(("base", "parentDir", "relativePath")), scalars),
        },
    ),
    max_size=5,
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "resourceUsedThresholdWithBE": anything
        | st.dictionaries(st.sampled_from([field.split(".")[-1] for field in FIELDS]), numbers),
        "resourceQOSStrategy": anything
        | st.dictionaries(
            st.sampled_from(("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot")),
            classes,
        ),
        "cpuBurstStrategy": anything,
        "systemStrategy": anything
        | st.dictionaries(st.sampled_from(("schedFeatures", "totalNetworkBandwidth")), anything),
        "hostApplications": anything | applications,
        "extensions": anything,
    },
)


def bounded(slo: NodeSlo) -> bool:
    return (
        len(slo.host_applications) <= MAX_APPLICATIONS
        and len(slo.extensions) <= MAX_EXTENSIONS
        and len(slo.system.sched_features) <= MAX_FEATURES
    )


@some
@given(specs | anything)
def test_no_spec_raises_and_equal_specs_give_equal_answers(spec: Any) -> None:
    result = overlay_spec(spec)
    assert overlay_spec(spec) == result
    assert bounded(result.slo)
    assert len(result.refused) <= min(MAX_INVALID_FIELDS, result.refused_count)
    assert all(len(refusal.why) < 200 and refusal.why.isascii() for refusal in result.refused)
    if isinstance(spec, dict):
        assert overlay_spec(dict(reversed(spec.items()))) == result


@some
@given(specs)
def test_what_is_in_force_is_a_spec_that_gives_itself(spec: Any) -> None:
    slo = overlay_spec(spec).slo
    again = overlay_spec(to_wire(slo))
    assert again.slo == slo
    contradictions = {f"spec.{LOWER}", f"spec.{BE}.cpuEvictLowerPercent"}
    assert {refusal.path for refusal in again.refused} <= contradictions
    assert again.unknown_fields == 0


@some
@given(specs)
def test_paths_of_applications_never_lead_up(spec: Any) -> None:
    for host_application in overlay_spec(spec).slo.host_applications:
        parts = (
            host_application.name,
            *(host_application.cgroup_path.parts if host_application.cgroup_path else ()),
        )
        assert not {"", ".", ".."} & set(parts)
        assert not any("/" in part or "\0" in part or "\n" in part for part in parts)


@some
@given(
    st.lists(anything | st.fixed_dictionaries({"metadata": anything, "spec": specs}), max_size=5)
)
def test_no_series_of_objects_raises(objects: list[Any]) -> None:
    view = NodeSloView()
    for raw in objects:
        view = build_slo_view(raw, view)
        assert bounded(view.slo)
    assert build_slo_view(None, view) == NodeSloView()


def test_a_spec_of_megabytes_is_answered_with_little() -> None:
    huge: dict[str, Any] = {
        "hostApplications": [{"name": "x" * 500}] * 20_000,
        "extensions": {f"k{i}": "x" * 1000 for i in range(2000)},
        "systemStrategy": {"schedFeatures": dict.fromkeys(map(str, range(20_000)), 5)},
        "resourceQOSStrategy": {"beClass": {"blkioQOS": {"blocks": [5] * 100_000}}},
        **{f"unknown{i}": i for i in range(20_000)},
    }
    result = overlay_spec(huge)
    assert bounded(result.slo)
    assert len(result.refused) <= MAX_INVALID_FIELDS
    assert result.unknown_fields == 20_000
