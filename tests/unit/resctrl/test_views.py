"""What people see of resctrl: metrics, annotation, page, state of the strategy."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from agent.metrics.exposition import MetricsRenderer
from agent.objects.device_annotations import RESCTRL_ANNOTATION, agent_annotations
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.part import SnapshotPart
from agent.snapshot.self_check import EnforcementView, StrategyState
from agent.snapshot.slo import ResctrlQos
from agent.web.page.qos_section import qos_section
from tests.factory import NOW_S, snapshot
from tests.resctrl.machine import Machine
from tests.unit.resctrl.scene import HALF, Scene, group, qos


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.add_pod(1, "BE")
    scene.add_pod(2, "LS", HALF)
    scene.set_class("BE", qos(0, 30, 40))
    scene.host.make("/sys/fs/resctrl/pqos")
    return scene


def node(scene: Scene) -> NodeSnapshot:
    view = scene.cycle()
    enforcement = EnforcementView(strategies=(scene.manager.status(),))
    return replace(snapshot(), resctrl=view, enforcement=SnapshotPart(enforcement, NOW_S))


def test_metrics_have_groups_masks_and_bandwidths(scene: Scene) -> None:
    page = MetricsRenderer({}).render(node(scene), NOW_S, openmetrics=False)
    text = page if isinstance(page, str) else page.decode()
    samples = {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "node")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "resctrl" in sample.name
    }
    assert samples["xpu_node_resctrl_foreign_groups",] == 1
    assert samples["xpu_agent_resctrl_tasks_moved_total",] == 4
    assert samples["xpu_node_resctrl_cache_ways", "1", "BE", "L3"] == 4
    assert samples["xpu_node_resctrl_bandwidth_limit", "0", "BE"] == 40
    assert samples["xpu_node_resctrl_cache_ways", "0", group(2), "L3"] == 6


def test_the_device_object_has_the_number_of_groups(scene: Scene) -> None:
    annotations = agent_annotations(node(scene), ())
    assert json.loads(annotations[RESCTRL_ANNOTATION]) == {"total": 6, "used": 2}
    assert RESCTRL_ANNOTATION not in agent_annotations(snapshot(), ())


def test_the_page_lists_the_groups(scene: Scene) -> None:
    html = qos_section(node(scene))
    assert "Resctrl groups: 2 of 6, 1 of other programs" in html
    assert "L3:0=f;1=f MB:0=40;1=40" in html
    assert f"pod {scene.pods[2].uid}" in html


def test_the_state_of_the_strategy_has_its_figures_and_problems(scene: Scene) -> None:
    scene.cycle()
    status = scene.manager.status()
    assert (status.state, status.values, status.message) == (StrategyState.ACTIVE, 2, "")
    assert status.figures == (("groups", 2.0), ("groups_allowed", 6.0), ("refusals", 0.0))
    scene.host.is_mounted = False
    scene.cycle()
    status = scene.manager.status()
    assert status.state is StrategyState.UNSUPPORTED
    assert "mount" in status.message


@pytest.mark.parametrize("mode", ["on", "plan"])
@pytest.mark.parametrize(
    ("machine", "values", "part"),
    [
        (Machine(l3_domains=(), rmids=0), qos(0, 30, 100), "the last-level cache"),
        (Machine(mb_domains=()), qos(0, 100, 30), "memory bandwidth"),
    ],
)
def test_a_class_that_asks_only_for_what_the_hardware_lacks_is_unsupported(
    machine: Machine, values: ResctrlQos, part: str, mode: str
) -> None:
    scene = Scene(machine, mode=mode)
    scene.set_class("BE", values)
    view = scene.cycle()
    assert (view.state, view.groups) == (StrategyState.UNSUPPORTED, ())
    assert part in view.message
    scene.classes.clear()
    scene.cycle(31)
    assert scene.manager.view.state is StrategyState.IDLE


def test_of_hardware_without_bandwidth_the_other_part_of_a_pod_s_request_is_named() -> None:
    scene = Scene(Machine(mb_domains=()))
    scene.add_pod(1, "LS", '{"llc":{"schemata":{"range":[0,50]}},"mb":{"schemata":{"percent":20}}}')
    view = scene.cycle()
    assert view.state is StrategyState.ACTIVE
    assert "memory bandwidth" in view.message
