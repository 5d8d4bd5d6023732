"""Tables of vendors give series the names, labels and units of other exporters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.cli.reference import exported_alias_tables
from agent.config.reference import setting_entries
from agent.config.settings import settings_type
from agent.metrics.alias_series import check_aliases
from agent.metrics.exposition import MetricsRenderer
from agent.snapshot.allocation import AllocationView
from agent.snapshot.inventory import (
    DeviceSample,
    Inventory,
    MetricFamily,
    MetricValue,
    ProcessSample,
)
from agent.snapshot.node import NodeSnapshot, VendorState
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pci import PciLink
from agent.snapshot.vendor import (
    AliasLabel,
    AliasMatch,
    AliasSource,
    AliasTable,
    DeviceValue,
    LabelOrigin,
    MetricAlias,
)
from agent.workers.load import load_vendors, vendor_descriptions
from tests.factory import NOW_S, gpu, pod, snapshot
from tests.vendors import DESCRIPTIONS

CARD, OTHER_MAKER = gpu(0), gpu(1)
PODS = pod(0), pod(1)
POWER = MetricFamily(name="xpu_device_power_watts", type="gauge", help="Power.")
TRAFFIC = MetricFamily(
    name="xpu_device_link_bytes_total", type="counter", help="B.", labels=("direction",)
)
NAMES = MetricFamily(
    name="xpu_device_port_info", type="gauge", help="N.", labels=("direction", "name")
)
LINK = PciLink(speed=160, max_speed=320, width=8, max_width=16)
LABELS = (
    AliasLabel("index", LabelOrigin.MINOR),
    AliasLabel("device", LabelOrigin.MINOR, prefix="acme"),
    AliasLabel("bus", LabelOrigin.BUS_ID_LONG),
    AliasLabel("Hostname", LabelOrigin.NODE),
    AliasLabel("driver", LabelOrigin.DRIVER_VERSION),
    AliasLabel("exporter", LabelOrigin.CONSTANT, "ours"),
    AliasLabel("pod", LabelOrigin.POD),
)


def alias(name: str, *sources: AliasSource, **changes: object) -> MetricAlias:
    metric = MetricAlias(name=name, type="gauge", help="H.", sources=sources)
    return replace(metric, **changes)


def table(*metrics: MetricAlias) -> AliasTable:
    return AliasTable(
        name="acme", exporter="Acme's", maker=CARD.info.vendor, labels=LABELS, metrics=metrics
    )


def node(*readings: MetricValue, pods: int = 0, **sample: object) -> NodeSnapshot:
    """Return a node with one card of the maker and one of another."""
    vendor = VendorState(
        vendor="nvidia",
        inventory=SnapshotPart(
            Inventory(vendor="nvidia", devices=(CARD.info,), driver_version="1.2"), NOW_S
        ),
        samples=SnapshotPart(
            (replace(DeviceSample(key=CARD.key, readings=readings), **sample),), NOW_S
        ),
    )
    other = replace(OTHER_MAKER, info=replace(OTHER_MAKER.info, vendor="other"))
    users = AllocationView(held={CARD.key: tuple(one.uid for one in PODS[:pods])})
    return replace(
        snapshot((CARD, other), pods=PODS),
        vendors=(vendor,),
        allocations=SnapshotPart(users, NOW_S),
    )


def with_link(snap: NodeSnapshot, link: PciLink) -> NodeSnapshot:
    """Return the node with this PCIe link of all devices."""
    view = snap.devices.value
    devices = (replace(device, place=replace(device.place, link=link)) for device in view.devices)
    return replace(snap, devices=SnapshotPart(replace(view, devices=tuple(devices)), NOW_S))


Series = list[tuple[dict[str, str], float]]


def series(snap: NodeSnapshot, alias_table: AliasTable) -> dict[str, Series]:
    """Return labels and values of the page's samples, by the names of the table."""
    renderer = MetricsRenderer(
        {"nvidia": (POWER, TRAFFIC, NAMES)}, aliases=("acme",), alias_tables=(alias_table,)
    )
    assert renderer.errors == ()
    page = renderer.render(snap, NOW_S)
    list(
        openmetrics_parser.text_string_to_metric_families(  # type: ignore[no-untyped-call]  # prometheus_client
            renderer.render(snap, NOW_S, openmetrics=True).decode()
        )
    )
    samples = [
        sample for f in text_string_to_metric_families(page.decode()) for sample in f.samples
    ]
    names = {metric.name for metric in alias_table.metrics}
    return {
        name: [(sample.labels, sample.value) for sample in samples if sample.name == name]
        for name in names
    }


def value(snap: NodeSnapshot, *sources: AliasSource) -> float | None:
    """Return the single value of an alias with these sources."""
    (values,) = series(snap, table(alias("ACME_X", *sources))).values()
    assert len(values) <= 1
    return values[0][1] if values else None


def test_a_series_has_the_labels_of_the_table_of_this_device_only() -> None:
    snap = node(memory_used_bytes=7)
    used = AliasSource(value=DeviceValue.MEMORY_USED_BYTES)
    ((labels, number),) = series(snap, table(alias("ACME_USED", used)))["ACME_USED"]
    assert number == 7
    assert labels == {
        "index": "0",
        "device": "acme0",
        "bus": f"0000{CARD.key.upper()}",
        "Hostname": snap.node.name,
        "driver": "1.2",
        "exporter": "ours",
    }


def test_a_long_pci_domain_keeps_its_eight_digits() -> None:
    snap = node(memory_used_bytes=7)
    (card, *others) = snap.devices.value.devices
    bus_id = "10000:01:00.0"
    moved = replace(card, info=replace(card.info, bus_id=bus_id))
    view = replace(snap.devices.value, devices=(moved, *others))
    healthy = AliasSource(value=DeviceValue.HEALTHY)
    ((labels, _),) = series(
        replace(snap, devices=SnapshotPart(view, NOW_S)), table(alias("ACME_UP", healthy))
    )["ACME_UP"]
    assert labels["bus"] == "00010000:01:00.0"


def test_a_card_that_pods_share_has_a_series_for_each() -> None:
    snap = node(MetricValue(family=POWER.name, value=3.0), pods=2)
    power = alias("ACME_POWER", AliasSource(family=POWER.name))
    values = series(snap, table(power))["ACME_POWER"]
    assert [(labels["pod"], watts) for labels, watts in values] == [(one.name, 3.0) for one in PODS]


def test_values_are_converted_to_the_other_unit_without_rounding_errors() -> None:
    snap = node(MetricValue(family=POWER.name, value=0.57))
    assert value(snap, AliasSource(family=POWER.name, factor=100)) == 57.0


def test_readings_with_the_same_labels_are_added_up_and_others_can_be_ignored() -> None:
    snap = node(
        MetricValue(family=TRAFFIC.name, value=1.0, labels=("tx",)),
        MetricValue(family=TRAFFIC.name, value=2.0, labels=("rx",)),
    )
    assert value(snap, AliasSource(family=TRAFFIC.name)) == 3
    assert value(snap, AliasSource(family=TRAFFIC.name, where=(("direction", "rx"),))) == 2
    assert value(snap, AliasSource(family=TRAFFIC.name, where=(("direction", "up"),))) is None


def test_readings_that_have_the_same_value_are_not_added_up() -> None:
    snap = node(
        MetricValue(family=TRAFFIC.name, value=2.0, labels=("tx",)),
        MetricValue(family=TRAFFIC.name, value=2.0, labels=("rx",)),
    )
    assert value(snap, AliasSource(family=TRAFFIC.name, is_sum=False)) == 2


def test_a_label_can_come_from_the_reading_or_be_of_one_source() -> None:
    snap = node(MetricValue(family=TRAFFIC.name, value=2.0, labels=("rx",)), core_percent=5.0)
    way = AliasLabel("way", LabelOrigin.READING, "direction", prefix="data_")
    scope = AliasLabel("scope", LabelOrigin.CONSTANT, "link")
    bytes_of = AliasSource(family=TRAFFIC.name, labels=(way, scope))
    whole = AliasSource(value=DeviceValue.UTILIZATION_PERCENT)
    metric = alias("ACME_X", whole, bytes_of, labels=())
    assert series(snap, table(metric))["ACME_X"] == [
        ({}, 5.0),
        ({"way": "data_rx", "scope": "link"}, 2.0),
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DeviceValue.UTILIZATION_PERCENT, 25.0),
        (DeviceValue.MEMORY_TOTAL_BYTES, 80),
        (DeviceValue.MEMORY_USED_BYTES, 20),
        (DeviceValue.MEMORY_FREE_BYTES, 60),
        (DeviceValue.MEMORY_USED_PERCENT, 25.0),
        (DeviceValue.HEALTHY, 1),
        (DeviceValue.PROCESSES, 1),
        (DeviceValue.PROCESS_MEMORY_BYTES, 9),
        (DeviceValue.PROCESS_VIRTUAL_BYTES, 10),
        (DeviceValue.PROCESS_UTILIZATION_PERCENT, 11.0),
        (DeviceValue.PROCESS_ENGINE_PERCENT, 12.0),
        (DeviceValue.NUMA_NODE, 0),
        (DeviceValue.PCIE_GENERATION, 4),
        (DeviceValue.PCIE_MAX_GENERATION, 5),
        (DeviceValue.PCIE_LANES, 8),
        (DeviceValue.PCIE_MAX_LANES, 16),
        (DeviceValue.ONE, 1),
    ],
)
def test_values_that_every_device_has(kind: DeviceValue, expected: float) -> None:
    snap = node(
        core_percent=25.0,
        memory_used_bytes=20,
        memory_total_bytes=80,
        processes=(
            ProcessSample(
                pid=4,
                memory_bytes=9,
                virtual_bytes=10,
                core_percent=11.0,
                engine_percents=(("encoder", 12.0),),
            ),
        ),
    )
    assert value(with_link(snap, LINK), AliasSource(value=kind)) == expected


@pytest.mark.parametrize(
    "kind",
    [
        DeviceValue.UTILIZATION_PERCENT,
        DeviceValue.MEMORY_USED_BYTES,
        DeviceValue.MEMORY_FREE_BYTES,
        DeviceValue.MEMORY_USED_PERCENT,
        DeviceValue.PROCESSES,
        DeviceValue.PROCESS_MEMORY_BYTES,
        DeviceValue.PROCESS_VIRTUAL_BYTES,
        DeviceValue.PROCESS_UTILIZATION_PERCENT,
        DeviceValue.PROCESS_ENGINE_PERCENT,
        DeviceValue.PCIE_GENERATION,
        DeviceValue.PCIE_MAX_LANES,
    ],
)
def test_a_value_that_a_device_does_not_report_has_no_series(kind: DeviceValue) -> None:
    snap = node(processes=(ProcessSample(pid=4),) if "PROCESS_" in kind.name else None)
    assert value(with_link(snap, PciLink()), AliasSource(value=kind)) is None


def test_a_processes_unit_is_chosen_by_its_label() -> None:
    process = ProcessSample(pid=4, engine_percents=(("encoder", 12.0), ("decoder", 3.0)))
    source = AliasSource(value=DeviceValue.PROCESS_ENGINE_PERCENT, where=(("engine", "decoder"),))
    pid = AliasLabel("pid", LabelOrigin.READING, "pid")
    metric = alias("ACME_X", source, labels=(pid,))
    assert series(node(processes=(process,)), table(metric))["ACME_X"] == [({"pid": "4"}, 3.0)]


@pytest.mark.parametrize(
    ("watts", "dbm"), [(1e-3, 0.0), (1e-2, 10.0), (1e-7, -40.0), (2e-3, 3.0103), (0.0, None)]
)
def test_light_in_watts_becomes_dbm(watts: float, dbm: float | None) -> None:
    snap = node(MetricValue(family=POWER.name, value=watts))
    assert value(snap, AliasSource(family=POWER.name, is_dbm=True)) == dbm


def test_a_label_can_come_from_another_reading_about_the_same_thing() -> None:
    snap = node(
        MetricValue(family=TRAFFIC.name, value=1.0, labels=("tx",)),
        MetricValue(family=TRAFFIC.name, value=2.0, labels=("rx",)),
        MetricValue(family=NAMES.name, value=1.0, labels=("tx", "port-7")),
    )
    joined = AliasLabel(
        "port", LabelOrigin.OTHER_READING, "name", "of-", family=NAMES.name, by="direction"
    )
    direction = AliasLabel("way", LabelOrigin.READING, "direction")
    metric = alias("ACME_X", AliasSource(family=TRAFFIC.name), labels=(direction, joined))
    assert series(snap, table(metric))["ACME_X"] == [
        ({"way": "tx", "port": "of-port-7"}, 1.0),
        ({"way": "rx"}, 2.0),
    ]


def test_a_label_of_a_family_that_nobody_declares_is_absent() -> None:
    snap = node(MetricValue(family=TRAFFIC.name, value=1.0, labels=("tx",)))
    joined = AliasLabel("port", LabelOrigin.OTHER_READING, "name", family="xpu_x", by="direction")
    metric = alias("ACME_X", AliasSource(family=TRAFFIC.name), labels=(joined,))
    assert series(snap, table(metric))["ACME_X"] == [({}, 1.0)]


def test_memory_used_above_the_total_leaves_no_free_memory_to_report() -> None:
    snap = node(memory_used_bytes=81, memory_total_bytes=80)
    assert value(snap, AliasSource(value=DeviceValue.MEMORY_FREE_BYTES)) is None


def test_a_family_of_the_node_has_one_series() -> None:
    devices = AliasSource(value=DeviceValue.DEVICES)
    metric = alias("acme_devices", devices, labels=(), is_of_node=True)
    assert series(node(pods=2), table(metric))["acme_devices"] == [({}, 1.0)]


@pytest.mark.parametrize("pods", [0, 1, 2])
def test_the_devices_that_pods_use_are_counted_once(pods: int) -> None:
    used = AliasSource(value=DeviceValue.DEVICES_IN_USE)
    metric = alias("acme_used", used, labels=(), is_of_node=True)
    expected: Series = [({}, float(pods > 0))]
    assert series(node(pods=pods), table(metric))["acme_used"] == expected


def test_a_family_of_pods_has_no_series_for_a_device_that_no_pod_uses() -> None:
    metric = alias("acme_pod_devices", AliasSource(value=DeviceValue.ONE), is_of_pod=True)
    assert series(node(), table(metric))["acme_pod_devices"] == []
    assert len(series(node(pods=2), table(metric))["acme_pod_devices"]) == 2


def test_an_absent_family_is_not_exported() -> None:
    metric = alias("ACME_X", match=AliasMatch.ABSENT, note="No call returns it.")
    renderer = MetricsRenderer({}, aliases=("acme",), alias_tables=(table(metric),))
    assert "ACME_X" not in {family.name for family in renderer.families}


def test_a_table_that_the_settings_do_not_name_has_no_series() -> None:
    metric = alias("ACME_X", AliasSource(value=DeviceValue.ONE))
    renderer = MetricsRenderer({}, aliases=("hami",), alias_tables=(table(metric),))
    assert b"ACME_X" not in renderer.render(node(), NOW_S)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "A-B"}, "not one of Prometheus"),
        ({"name": "xpu_device_healthy"}, "exported already"),
        ({"type": "summary"}, "not gauge or counter"),
        ({"labels": (*LABELS, LABELS[0])}, "bad name, or is there twice"),
        ({"labels": (AliasLabel("a-b", LabelOrigin.UUID),)}, "bad name, or is there twice"),
    ],
)
def test_a_bad_alias_is_refused_with_a_reason(changes: dict[str, object], words: str) -> None:
    metric = replace(alias("ACME_X", AliasSource(value=DeviceValue.ONE)), **changes)
    check = check_aliases([table(metric)], ["xpu_device_healthy"])
    assert check.tables[0].metrics == ()
    (error,) = check.errors
    assert words in error


def test_the_settings_offer_the_tables_of_the_vendors() -> None:
    rules = {entry.key: entry.rule for entry in setting_entries(settings_type(DESCRIPTIONS))}
    offered = rules["metrics.aliases"].choices
    tables = tuple(alias.name for vendor in DESCRIPTIONS for alias in vendor.aliases)
    assert offered == ("hami", "hami_legacy", "koordlet", "node_exporter", *tables)
    assert len(set(offered)) == len(offered)


def test_the_tables_of_the_vendors_we_ship_can_be_exported() -> None:
    vendors = load_vendors()
    tables = exported_alias_tables()
    renderer = MetricsRenderer(
        {name: vendor.description.families for name, vendor in vendors.items()},
        aliases=tuple(one.name for one in tables),
        alias_tables=tables,
    )
    assert renderer.errors == ()


@pytest.mark.parametrize(
    ("vendor", "metric"),
    [
        pytest.param(vendor.name, metric, id=metric.name)
        for vendor in vendor_descriptions()
        for alias in vendor.aliases
        for metric in alias.metrics
    ],
)
def test_an_alias_of_a_vendor_is_made_from_a_family_of_that_vendor(
    vendor: str, metric: MetricAlias
) -> None:
    (description,) = (one for one in vendor_descriptions() if one.name == vendor)
    families = {family.name: family for family in description.families}
    assert bool(metric.sources) == (metric.match is not AliasMatch.ABSENT)
    assert bool(metric.note) == (metric.match is not AliasMatch.SAME)
    for source in metric.sources:
        assert (source.value is None) != (not source.family)
        if source.family:
            names = {name for name, _ in source.where}
            names |= {
                label.key
                for label in (*(metric.labels or ()), *source.labels)
                if label.origin is LabelOrigin.READING
            }
            assert names <= set(families[source.family].labels)
    for label in metric.labels or ():
        if label.origin is LabelOrigin.OTHER_READING:
            assert {label.by, label.key} <= set(families[label.family].labels)
