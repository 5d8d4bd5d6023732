"""Which objects are published is a matter of settings."""

from __future__ import annotations

import pytest

from agent.config.sources import decode_settings
from agent.objects.node_resource_topology import TopologyPublisher
from agent.objects.publishers import enabled_publishers, publishers

ALWAYS = ["device", "topology", "nodemetric"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ALWAYS),
        ({"api": {"node_labels": True}}, [*ALWAYS, "nodelabels"]),
        ({"api": {"node_condition": True}}, [*ALWAYS, "nodecondition"]),
        ({"publish": {"device": False, "node_metric": False}}, ["topology"]),
        ({"publish": {"node_resource_topology": False}}, ["device", "nodemetric"]),
    ],
)
def test_conditions_of_the_node_are_off_by_default(
    settings: dict[str, object], names: list[str]
) -> None:
    assert list(enabled_publishers(decode_settings(settings))) == names


@pytest.mark.parametrize("asked", [True, False])
def test_the_topology_depends_on_whether_the_kubelet_is_polled(asked: bool) -> None:
    result = publishers(decode_settings({"kubelet": {"enabled": asked}}))["topology"]
    assert isinstance(result, TopologyPublisher)
    assert result.is_kubelet_enabled is asked


def test_each_has_the_interval_of_its_setting() -> None:
    settings = decode_settings({"publish": {"interval_s": 7.0, "report_interval_s": 45.0}})
    result = {name: publisher.interval_s for name, publisher in publishers(settings).items()}
    assert result == {**dict.fromkeys(result, 7.0), "nodemetric": 45.0}
