from __future__ import annotations

import re

import pytest

from agent.metrics.collector_series import COLLECTOR_FAMILIES
from agent.metrics.device_series import check_families, export_family
from agent.metrics.families import DEVICE, FAMILIES, RDMA_DEVICE, ExportedFamily, reference_rows
from agent.snapshot.inventory import MetricFamily
from agent.workers.load import load_vendors

NAME = re.compile(
    r"xpu_(agent|node|pod|container|host_application|device|gpudirect)_[a-z0-9]+(_[a-z0-9]+)*"
)
ABBREVIATED = ("_ms", "_us", "_ns", "_percent", "_mib", "_kb", "_mb", "_mhz", "_celcius")


@pytest.mark.parametrize(
    "family", [*FAMILIES, *COLLECTOR_FAMILIES], ids=lambda family: str(family.name)
)
def test_a_family_follows_the_rules_of_names(family: ExportedFamily) -> None:
    assert NAME.fullmatch(family.name)
    assert (family.type == "counter") == family.name.endswith("_total")
    assert (family.type == "info") == family.name.endswith("_info")
    assert not family.name.removesuffix("_total").endswith(ABBREVIATED)
    assert not family.unit or family.name.removesuffix("_total").endswith(f"_{family.unit}")
    assert family.help.endswith(".")
    assert family.labels[0] == "node"
    assert len(set(family.labels)) == len(family.labels)
    assert family.stability in ("alpha", "beta", "stable")


def test_names_are_unique_also_without_the_suffixes_of_openmetrics() -> None:
    names = [family.name.removesuffix("_total").removesuffix("_info") for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_no_two_families_are_explained_alike_within_a_scope() -> None:
    scopes = [(family.name.split("_")[1], family.help) for family in FAMILIES]
    assert len(set(scopes)) == len(scopes)


def test_every_family_of_the_vendors_we_ship_can_be_exported() -> None:
    vendors = load_vendors()
    assert (
        check_families(
            (name, vendor.description.families) for name, vendor in vendors.items()
        ).errors
        == ()
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "power"}, "does not fit"),
        ({"name": "xpu_Power"}, "does not fit"),
        ({"name": "xpu_device_healthy"}, "exports it itself"),
        ({"type": "histogram"}, "not gauge or counter"),
        ({"type": "counter"}, "end in _total"),
        ({"name": "xpu_device_a_total"}, "end in _total"),
        ({"labels": ("node",)}, "label"),
        ({"labels": ("a-b",)}, "label"),
        ({"labels": ("a", "a")}, "label"),
    ],
)
def test_a_vendors_bad_family_is_refused_with_a_reason(
    changes: dict[str, object], words: str
) -> None:
    good: dict[str, object] = {"name": "xpu_device_power_watts", "type": "gauge", "help": "Power."}
    family = MetricFamily(**{**good, **changes})  # type: ignore[arg-type]  # a test's own fields
    families = check_families([("acme", [family])])
    assert families.families == {}
    (text,) = families.errors
    assert text.startswith("vendor acme: metric family ")
    assert words in text


def test_two_vendors_may_share_a_family_that_they_declare_alike() -> None:
    one = MetricFamily(name="xpu_device_power_watts", type="gauge", help="Power.")
    same = MetricFamily(name="xpu_device_power_watts", type="gauge", help="Watts.")
    other = MetricFamily(name="xpu_device_power_watts", type="gauge", help="P.", labels=("rail",))
    families = check_families([("a", [one]), ("b", [same]), ("c", [other])])
    assert families.families == {"xpu_device_power_watts": one}
    assert len(families.errors) == 1


def test_families_that_openmetrics_would_call_alike_are_refused() -> None:
    gauge = MetricFamily(name="xpu_device_resets", type="gauge", help="Resets.")
    counter = MetricFamily(name="xpu_device_resets_total", type="counter", help="Resets.")
    families = check_families([("a", [gauge, counter])])
    assert families.families == {"xpu_device_resets": gauge}
    assert len(families.errors) == 1


def test_a_vendors_info_gauge_becomes_an_info() -> None:
    family = MetricFamily(name="xpu_rdma_info", type="gauge", help="Facts.", labels=("rdma",))
    assert export_family(family).type == "info"
    assert export_family(family).labels == (*RDMA_DEVICE, "rdma")
    power = MetricFamily(name="xpu_device_power_watts", type="gauge", help="Power.")
    assert export_family(power).labels == DEVICE


def test_the_reference_lists_every_family_by_name() -> None:
    family = MetricFamily(name="xpu_device_power_watts", type="gauge", help="Power.")
    rows = reference_rows((*FAMILIES, export_family(family)))
    names = [str(row["name"]) for row in rows]
    assert names == sorted({f.name for f in FAMILIES} | {"xpu_device_power_watts"})
    (row,) = [row for row in rows if row["name"] == "xpu_pod_cpu_seconds_total"]
    assert row == {
        "name": "xpu_pod_cpu_seconds_total",
        "type": "counter",
        "labels": "node,namespace,pod,pod_uid",
        "unit": "seconds",
        "stability": "stable",
        "alias_of": None,
        "help": "CPU time used.",
    }
