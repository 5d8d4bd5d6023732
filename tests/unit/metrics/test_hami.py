from __future__ import annotations

from collections import defaultdict

import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from agent.config.sources import decode_settings
from agent.errors import BadConfig
from agent.metrics.exposition import MetricsRenderer
from agent.metrics.families import FAMILIES
from agent.metrics.hami import HAMI_ALIAS, HAMI_LEGACY_ALIAS, hami_families, hami_table
from agent.snapshot.inventory import DeviceSample, MetricValue, Problem
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.usage import SharedCard, SharedRegion, SharingView
from agent.snapshot.vendor import AliasMatch
from tests.factory import NOW_S, gpu, nic, pod, snapshot

UUID = "GPU-00000000-0000-4000-8000-000000000000"
CARD = SharedCard(
    index=0,
    uuid=f"{UUID}-and-more",
    used_bytes=500,
    context_bytes=100,
    module_bytes=50,
    buffer_bytes=150,
    offset_bytes=7,
    core_percent=25,
    limit_bytes=1 << 30,
)


def shared(**changes: object) -> NodeSnapshot:
    """One pod with a share of the first card, and what the card itself does."""
    card = gpu(0, facts=(("name", "NVIDIA H100 80GB HBM3"), ("index", "3")))
    one = pod(0)
    region = SharedRegion(
        pod_uid=one.uid,
        container="worker-0",
        layout="A",
        cards=(replace(CARD, **changes),),
        last_kernel_s=90,
    )
    busy = MetricValue(family="xpu_device_memory_busy_ratio", value=0.25)
    sample = DeviceSample(
        key=card.key, core_percent=50.0, memory_used_bytes=1 << 30, readings=(busy,)
    )
    snap = snapshot((card, nic(0)), pods=(one,))
    (nvidia,) = snap.vendors
    return replace(
        snap,
        vendors=(replace(nvidia, samples=SnapshotPart((sample,), NOW_S)),),
        sharing=SnapshotPart(SharingView(regions=(region,), wall_s=100.0), NOW_S),
    )


def values(
    snap: NodeSnapshot, *aliases: str, now_s: float = NOW_S
) -> dict[str, tuple[float, dict[str, str]]]:
    """Return value and labels of each HAMi sample by name; every name has one here."""
    page = MetricsRenderer({}, aliases=aliases).render(snap, now_s).decode()
    result: dict[str, tuple[float, dict[str, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if not sample.name.startswith("xpu_"):
                assert sample.name not in result
                result[sample.name] = (sample.value, dict(sample.labels))
    return result


CONTAINER = {
    "zone": "vGPU",
    "namespace": "team-a",
    "pod": "train-0",
    "container": "worker-0",
    "vdevice_index": "0",
    "device_uuid": UUID,
}
OLD_CONTAINER = {
    "zone": "vGPU",
    "podnamespace": "team-a",
    "podname": "train-0",
    "ctrname": "worker-0",
    "vdeviceid": "0",
    "deviceuuid": UUID,
}


def test_no_family_of_hami_is_exported_by_default() -> None:
    assert values(shared()) == {}


def test_the_new_names_have_the_new_labels() -> None:
    result = values(shared(), HAMI_ALIAS)
    host = {
        "device_index": "3",
        "device_uuid": UUID,
        "device_type": "NVIDIA-NVIDIA H100 80GB HBM3",
        "zone": "vGPU",
    }
    node = host | {"node": "hgx-h100-01"}
    assert result == {
        "hami_host_gpu_memory_used_bytes": (1 << 30, node),
        "hami_host_gpu_utilization_ratio": (50, node),
        "hami_host_gpu_memory_controller_utilization_ratio": (25, host),
        "hami_vgpu_memory_used_bytes": (500, CONTAINER),
        "hami_vgpu_memory_limit_bytes": (1 << 30, CONTAINER),
        "hami_container_device_memory_bytes": (500, CONTAINER),
        "hami_container_device_utilization_ratio": (25, CONTAINER),
        "hami_container_last_kernel_elapsed_seconds": (10, CONTAINER),
        "hami_vgpu_memory_context_bytes": (100, CONTAINER),
        "hami_vgpu_memory_module_bytes": (50, CONTAINER),
        "hami_vgpu_memory_buffer_bytes": (150, CONTAINER),
    }


def test_the_old_names_have_the_old_labels() -> None:
    result = values(shared(), HAMI_LEGACY_ALIAS)
    host = {
        "zone": "vGPU",
        "nodeid": "hgx-h100-01",
        "deviceidx": "3",
        "deviceuuid": UUID,
        "devicetype": "NVIDIA-NVIDIA H100 80GB HBM3",
    }
    parts = {"context": "100", "module": "50", "data": "150", "offset": "7"}
    assert result == {
        "HostGPUMemoryUsage": (1 << 30, host),
        "HostCoreUtilization": (50, host),
        "vGPU_device_memory_usage_in_bytes": (500, OLD_CONTAINER),
        "vGPU_device_memory_limit_in_bytes": (1 << 30, OLD_CONTAINER),
        "Device_memory_desc_of_container": (500, OLD_CONTAINER | parts),
        "Device_utilization_desc_of_container": (25, OLD_CONTAINER),
        "Device_last_kernel_of_container": (10, OLD_CONTAINER),
    }


def test_every_family_is_exported_with_exactly_its_labels_in_both_formats() -> None:
    aliases = (HAMI_ALIAS, HAMI_LEGACY_ALIAS)
    page = MetricsRenderer({}, aliases=aliases).render(shared(), NOW_S, openmetrics=True).decode()
    labels: dict[str, set[str]] = defaultdict(set)
    families = openmetrics_parser.text_string_to_metric_families(page)  # type: ignore[no-untyped-call]  # prometheus_client
    for family in families:
        for sample in family.samples:
            if not sample.name.startswith("xpu_"):
                labels[sample.name] |= set(sample.labels)
    table = hami_families(aliases)
    assert labels == {family.name: set(family.labels) for family in table}
    assert len({family.name for family in (*table, *FAMILIES)}) == len(table) + len(FAMILIES)


@pytest.mark.parametrize("alias", [HAMI_ALIAS, HAMI_LEGACY_ALIAS])
def test_the_reference_has_every_exported_name_and_reasons_for_others(alias: str) -> None:
    table = hami_table(alias).metrics
    absent = [one for one in table if one.match is AliasMatch.ABSENT]
    exported = [one.name for one in table if one not in absent]
    assert exported == [one.name for one in hami_families((alias,))]
    assert absent
    assert all(one.note for one in absent)


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"limit_bytes": None}, "hami_vgpu_memory_limit_bytes", None),
        ({"measured_bytes": 900}, "hami_vgpu_memory_used_bytes", 900),
        ({"measured_bytes": 0}, "hami_vgpu_memory_used_bytes", 0),
    ],
)
def test_no_limit_has_no_series_and_the_drivers_figure_wins(
    changes: dict[str, object], name: str, value: float | None
) -> None:
    result = values(shared(**changes), HAMI_ALIAS)
    assert (result[name][0] if name in result else None) == value


def test_an_old_reading_is_not_exported_and_a_pod_without_name_has_its_uid() -> None:
    snap = shared()
    stale = replace(snap, sharing=SnapshotPart(snap.sharing.value, NOW_S - 181))
    assert "hami_vgpu_memory_used_bytes" not in values(stale, HAMI_ALIAS)
    unnamed = replace(snap, pods=SnapshotPart((), NOW_S))
    _, labels = values(unnamed, HAMI_ALIAS)["hami_vgpu_memory_used_bytes"]
    assert labels["pod"] == pod(0).uid
    assert "namespace" not in labels


def test_what_is_wrong_with_sharing_shows_as_a_problem_of_the_vendor() -> None:
    snap = shared()
    drift = Problem(reason="RegionDrift", message="m")
    view = replace(snap.sharing.value, problems=(drift,))
    page = (
        MetricsRenderer({}).render(replace(snap, sharing=SnapshotPart(view, NOW_S)), NOW_S).decode()
    )
    assert (
        'xpu_agent_vendor_problem{node="hgx-h100-01",vendor="nvidia",reason="RegionDrift"} 1'
        in page
    )


@pytest.mark.parametrize(
    ("written", "aliases"),
    [("hami", ("hami",)), (["hami", "hami_legacy"], ("hami", "hami_legacy")), ("", ())],
)
def test_aliases_are_chosen_by_a_setting(written: object, aliases: tuple[str, ...]) -> None:
    assert decode_settings({"metrics": {"aliases": written}}).metrics.aliases == aliases


def test_an_unknown_alias_is_refused_by_name() -> None:
    with pytest.raises(BadConfig, match=r"metrics.aliases: 'hamy' is not one of"):
        decode_settings({"metrics": {"aliases": ["hamy"]}})
