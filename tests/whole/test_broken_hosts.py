"""A host broken at random: what can be known is published, nothing crashes, nothing is invented."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from prometheus_client.parser import text_string_to_metric_families

from agent.app.composition import (
    AgentInputs,
    build_device_joiner,
    build_host_reader,
    create_inputs,
    metric_families,
)
from agent.app.oneshot import build_usage_monitor
from agent.clock import ManualClock
from agent.config.sources import decode_settings
from agent.errors import NotSupported
from agent.metrics.exposition import render_metrics
from agent.objects.publishers import publishers
from agent.objects.yaml_text import to_yaml
from agent.recording.host_source import HostSource
from agent.recording.tree import TreeFiles
from agent.snapshot.node import VendorState
from agent.snapshot.part import SnapshotPart
from agent.web.page.document import render_page
from agent.web.page.svg import topology_svg
from agent.wire_formats.snapshot_json import encode_json, snapshot_json
from agent.workers.manager import replace_vendor
from tests import schemas
from tests.captures import SHARED, needs_shared
from tests.unit.web.view import StillView
from tests.vendors import open_session
from tests.whole.hosts import broken_hosts

CRDS = {
    "Device": "scheduling.koordinator.sh_devices.yaml",
    "NodeMetric": "slo.koordinator.sh_nodemetrics.yaml",
}
HARD = settings(max_examples=60, suppress_health_check=list(HealthCheck))


def inspect(files: TreeFiles) -> AgentInputs:
    """Do what a look does, with the vendors in this process: what they raise is a failure."""
    opened = HostSource(files=files, source="broken", spec="broken")
    inputs = create_inputs(decode_settings({"node": {"name": "n"}}), opened, ManualClock())
    joiner, measuring = build_device_joiner(inputs), build_usage_monitor(inputs)
    build_host_reader(inputs).read_host()
    measuring.cycle()
    for name, vendor in inputs.vendors.items():
        if not vendor.detect(files, vendor.description.settings()):
            continue
        session = open_session(vendor, files, {"replay": True})
        inventory = session.discover()
        try:
            samples = session.sample()
        except NotSupported:
            samples = ()
        session.close()
        state = VendorState(
            vendor=name,
            state="ready",
            inventory=SnapshotPart(inventory, 1.0),
            samples=SnapshotPart(samples, 1.0),
        )
        inputs.store.change(lambda snapshot, state=state: replace_vendor(snapshot, state))  # type: ignore[misc]
    joiner.update(inputs.store, inputs.clock.monotonic())
    measuring.cycle()
    measuring.report()
    measuring.close()
    return inputs


@HARD
@given(files=broken_hosts())
def test_everything_is_rendered_of_whatever_is_left(files: TreeFiles) -> None:
    inputs = inspect(files)
    snapshot = inputs.store.current
    page = render_metrics(
        snapshot, inputs.clock.monotonic(), vendor_families=metric_families(inputs.vendors)
    )
    assert list(text_string_to_metric_families(page.decode()))
    ET.fromstring(topology_svg(snapshot))
    assert render_page(StillView(snapshot)).endswith("</html>\n")
    assert encode_json(snapshot_json(snapshot, 1.0))
    for publisher in publishers(inputs.settings).values():
        for desired in publisher.render(snapshot, inputs.clock.wall()):
            assert yaml.safe_load(to_yaml(desired.body)) is not None


@needs_shared
@HARD
@given(files=broken_hosts())
def test_published_objects_stay_acceptable_to_a_cluster(files: TreeFiles) -> None:
    inputs = inspect(files)
    for publisher in publishers(inputs.settings).values():
        for desired in publisher.render(inputs.store.current, inputs.clock.wall()):
            if desired.kind in CRDS:
                schemas.check(CRDS[desired.kind], desired.body)


@HARD
@given(files=broken_hosts())
def test_equal_hosts_give_equal_bytes(files: TreeFiles) -> None:
    first, second = (inspect(files) for _ in range(2))
    for publisher in publishers(first.settings).values():
        one = publisher.render(first.store.current, 1.0)
        assert one == publisher.render(second.store.current, 1.0)
    assert first.store.current == second.store.current


def test_an_empty_host_is_a_host_of_which_nothing_is_known() -> None:
    inputs = inspect(TreeFiles.from_entries({}))
    snapshot = inputs.store.current
    assert snapshot.devices.value.devices == ()
    assert snapshot.usage.value.node.memory_bytes is None
    assert "This host has no accelerator" in render_page(StillView(snapshot))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no captures beside this checkout")
def test_the_schemas_are_where_the_tests_expect_them() -> None:
    for name in CRDS.values():
        assert (SHARED / "crds" / name).is_file()
