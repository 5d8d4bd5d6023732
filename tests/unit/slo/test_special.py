"""Host applications, block devices, scheduler features, bandwidth, third parties' parts."""

from __future__ import annotations

import json

import pytest

from agent.slo.decoder import (
    MAX_APPLICATIONS,
    MAX_BLOCKS,
    MAX_DEPTH,
    MAX_EXTENSION_BYTES,
    MAX_EXTENSIONS,
    MAX_FEATURES,
)
from agent.slo.overlay import OverlayResult, overlay_spec
from tests.unit.slo.wire import Tree, nested

BLKIO = "resourceQOSStrategy.beClass.blkioQOS"


def applications(*items: object) -> OverlayResult:
    return overlay_spec({"hostApplications": list(items)})


def paths(overlay_result: OverlayResult) -> list[str]:
    return [refusal.path for refusal in overlay_result.refused]


def test_an_application_is_kept_with_its_class_and_place() -> None:
    place = {"base": "KubepodsBesteffort", "parentDir": "yarn/", "relativePath": "./node//main/"}
    result = applications(
        {"name": "yarn", "qos": "BE", "priority": "koord-batch", "cgroupPath": place},
        {"name": "nginx", "strategy": {}, "qos": "", "priority": None},
    )
    yarn, nginx = result.slo.host_applications
    assert (yarn.name, yarn.qos, yarn.priority) == ("yarn", "BE", "koord-batch")
    assert yarn.cgroup_path is not None
    assert yarn.cgroup_path.base == "KubepodsBesteffort"
    assert yarn.cgroup_path.parts == ("yarn", "node", "main")
    assert (nginx.qos, nginx.priority, nginx.cgroup_path) == ("", "", None)
    assert result.refused == ()


@pytest.mark.parametrize(
    "path",
    ["..", "../x", "a/..", "a/../b", "/etc", "/", "a\nb", "a\x00", "\x7f", "\ud800", 5, ["a"]],
    ids=ascii,
)
@pytest.mark.parametrize("field", ["parentDir", "relativePath"])
def test_an_application_outside_of_its_base_is_left_out(field: str, path: object) -> None:
    place = {"parentDir": "p", "relativePath": "r", field: path}
    result = applications({"name": "a", "cgroupPath": place}, {"name": "b"})
    assert [host_application.name for host_application in result.slo.host_applications] == ["b"]
    assert paths(result) == [f"spec.hostApplications[0].cgroupPath.{field}"]


@pytest.mark.parametrize("path", ["a..b", "...", "a/..b/c..", ".", "a b", "ä", "x" * 1024])
def test_dots_and_odd_names_that_lead_nowhere_else_are_allowed(path: str) -> None:
    place = {"parentDir": "p", "relativePath": path}
    assert applications({"name": "a", "cgroupPath": place}).refused == ()


@pytest.mark.parametrize("place", [{}, {"base": "Kubepods"}, {"relativePath": "./"}])
def test_an_application_that_would_be_all_of_its_base_is_left_out(place: Tree) -> None:
    result = applications({"name": "a", "cgroupPath": place})
    assert result.slo.host_applications == ()
    assert paths(result) == ["spec.hostApplications[0].cgroupPath"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\n", "\x1b[0m", "x" * 129, 7, None])
def test_an_application_whose_name_is_no_directory_is_left_out(name: object) -> None:
    result = applications({"name": name}, {"name": "b"})
    assert [host_application.name for host_application in result.slo.host_applications] == ["b"]
    assert paths(result) == ["spec.hostApplications[0].name"]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"name": "a", "qos": "LSX"}, "qos"),
        (
            {"name": "a", "cgroupPath": {"base": "Elsewhere", "relativePath": "x"}},
            "cgroupPath.base",
        ),
        ({"name": "a", "cgroupPath": "x"}, "cgroupPath"),
    ],
)
def test_an_application_that_may_be_elsewhere_is_left_out(item: Tree, path: str) -> None:
    result = applications(item)
    assert result.slo.host_applications == ()
    assert paths(result) == [f"spec.hostApplications[0].{path}"]


def test_a_wrong_priority_class_is_refused_alone() -> None:
    result = applications({"name": "a", "qos": "LS", "priority": "high"})
    assert [
        (host_application.name, host_application.priority)
        for host_application in result.slo.host_applications
    ] == [("a", "")]
    assert paths(result) == ["spec.hostApplications[0].priority"]


def test_of_applications_of_one_name_the_first_stands() -> None:
    result = applications({"name": "a", "qos": "LS"}, {"name": "a", "qos": "BE"}, {"name": "b"})
    assert [
        (host_application.name, host_application.qos)
        for host_application in result.slo.host_applications
    ] == [("a", "LS"), ("b", "")]
    assert paths(result) == ["spec.hostApplications[1].name"]


@pytest.mark.parametrize("item", [None, 5, "a", []])
def test_what_is_no_application_is_refused_alone(item: object) -> None:
    result = applications(item, {"name": "b"})
    assert [host_application.name for host_application in result.slo.host_applications] == ["b"]
    assert paths(result) == ["spec.hostApplications[0]"]


def test_applications_are_bounded() -> None:
    result = applications(*({"name": f"a{i}"} for i in range(MAX_APPLICATIONS + 9)))
    assert len(result.slo.host_applications) == MAX_APPLICATIONS
    assert paths(result) == ["spec.hostApplications"]


def test_block_devices_keep_their_good_values() -> None:
    block = {"name": "sda", "type": "volumegroup", "ioCfg": {"readBPS": -1, "ioWeightPercent": 60}}
    result = overlay_spec(nested(BLKIO, {"enable": True, "blocks": [block]}))
    blkio = result.slo.resource_qos.be_class.blkio
    assert blkio is not None
    assert (blkio.enable, [(b.name, b.type) for b in blkio.blocks]) == (
        True,
        [("sda", "volumegroup")],
    )
    assert (blkio.blocks[0].io_cfg.read_bps, blkio.blocks[0].io_cfg.io_weight_percent) == (None, 60)
    assert paths(result) == [f"spec.{BLKIO}.blocks[0].ioCfg.readBPS"]


@pytest.mark.parametrize(
    "block", [{}, {"name": ""}, {"name": "a\n"}, {"name": "a", "type": "x"}, 5]
)
def test_a_block_device_without_a_valid_name_is_left_out(block: object) -> None:
    result = overlay_spec(nested(BLKIO, {"blocks": [block, {"name": "sdb"}]}))
    blkio = result.slo.resource_qos.be_class.blkio
    assert blkio is not None
    assert [one.name for one in blkio.blocks] == ["sdb"]
    assert result.refused_count == 1


def test_block_devices_are_bounded() -> None:
    result = overlay_spec(nested(f"{BLKIO}.blocks", [{"name": "sda"}] * (MAX_BLOCKS + 1)))
    blkio = result.slo.resource_qos.be_class.blkio
    assert blkio is not None
    assert (len(blkio.blocks), paths(result)) == (MAX_BLOCKS, [f"spec.{BLKIO}.blocks"])


def test_no_block_devices_and_an_empty_list_of_them_differ() -> None:
    assert overlay_spec({}).slo.resource_qos.be_class.blkio is None
    assert overlay_spec(nested(BLKIO, {})).slo.resource_qos.be_class.blkio is not None


def test_scheduler_features_are_names_with_switches() -> None:
    inputs = {"ID_X": True, "A": False, "no": True, "A\nB": True, "B": "true", "C": None, "": True}
    result = overlay_spec(nested("systemStrategy.schedFeatures", inputs))
    assert result.slo.system.sched_features == (("A", False), ("ID_X", True))
    place = "spec.systemStrategy.schedFeatures"
    assert paths(result) == [place, f"{place}['B']"]
    many = {f"F{i:03}": True for i in range(MAX_FEATURES + 1)}
    result = overlay_spec(nested("systemStrategy.schedFeatures", many))
    assert (len(result.slo.system.sched_features), paths(result)) == (MAX_FEATURES, [place])


@pytest.mark.parametrize("value", ["0", "10M", "1.5Gi", "50", "2e3", 0, 50, 100])
@pytest.mark.parametrize(
    "field", ["ingressRequest", "ingressLimit", "egressRequest", "egressLimit"]
)
def test_bandwidth_is_a_percentage_or_a_quantity(field: str, value: object) -> None:
    result = overlay_spec(nested(f"resourceQOSStrategy.lsClass.networkQOS.{field}", value))
    network = result.slo.resource_qos.ls_class.network
    names = ("ingress_request", "ingress_limit", "egress_request", "egress_limit")
    assert value in {getattr(network, name) for name in names}
    assert result.refused == ()


@pytest.mark.parametrize("value", ["", "-1", "50%", "x", "1" * 64, -1, 101, 1.5, True, {}])
def test_what_is_neither_leaves_the_bandwidth_alone(value: object) -> None:
    result = overlay_spec(nested("resourceQOSStrategy.lsClass.networkQOS.ingressLimit", value))
    assert result.slo == overlay_spec({}).slo
    assert result.refused_count == 1


def test_the_limit_of_the_schema_counts_and_the_agents_default_without_it() -> None:
    filled = {"ingressLimit": 100, "egressLimit": 100, "ingressRequest": 0, "egressRequest": 0}
    result = overlay_spec(
        nested("resourceQOSStrategy.lsClass.networkQOS", {"enable": True, **filled})
    )
    assert result.slo.resource_qos.ls_class.network.ingress_limit == 100
    assert overlay_spec({}).slo.resource_qos.ls_class.network.ingress_limit == 0


@pytest.mark.parametrize(("value", "text"), [("10G", "10G"), (25000, "25000"), (0, "0")])
def test_the_nodes_bandwidth_is_a_quantity_or_a_number(value: object, text: str) -> None:
    result = overlay_spec(nested("systemStrategy.totalNetworkBandwidth", value))
    assert (result.slo.system.total_network_bandwidth, result.refused) == (text, ())


@pytest.mark.parametrize("value", ["", "-1", "x", -1, 2**63, 1.5, True, []])
def test_what_is_none_leaves_the_nodes_bandwidth_alone(value: object) -> None:
    result = overlay_spec(nested("systemStrategy.totalNetworkBandwidth", value))
    assert result.slo.system.total_network_bandwidth == "0"
    assert result.refused_count == 1


def deep(levels: int) -> Tree:
    tree: Tree = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def test_third_parties_parts_are_kept_unchanged() -> None:
    result = overlay_spec(
        {"extensions": {"b": {"y": [1, 2.5, None], "x": "ä"}, "a": False, "c": None}}
    )
    assert result.slo.extensions == (("a", "false"), ("b", '{"x":"ä","y":[1,2.5,null]}'))
    assert result.refused == ()


@pytest.mark.parametrize(
    "value",
    [
        "x" * MAX_EXTENSION_BYTES,
        ["é" * 9] * (MAX_EXTENSION_BYTES // 20),
        list(range(MAX_EXTENSION_BYTES)),
        {"k" * 99: {str(i): i for i in range(MAX_EXTENSION_BYTES)}},
        deep(MAX_DEPTH + 1),
        deep(100_000),
        "\ud800",
        {1: object()},
    ],
    ids=["text", "bytes", "list", "object", "deep", "deeper", "surrogate", "no JSON"],
)
def test_a_part_that_is_too_large_or_too_deep_is_left_out_alone(value: object) -> None:
    result = overlay_spec({"extensions": {"big": value, "small": deep(MAX_DEPTH)}})
    assert [key for key, _ in result.slo.extensions] == ["small"]
    assert paths(result) == ["spec.extensions['big']"]


def test_brackets_in_texts_are_no_levels() -> None:
    value = {"[" * 99: "{" * 99, 'a"[': '\\"[[\\', "\\": ["\\\\", '"']}
    result = overlay_spec({"extensions": {"a": value}})
    assert [json.loads(text) for _, text in result.slo.extensions] == [value]


def test_third_parties_parts_share_one_bound() -> None:
    half = "x" * (MAX_EXTENSION_BYTES // 2)
    result = overlay_spec({"extensions": {"a": half, "b": half, "c": 1}})
    assert [key for key, _ in result.slo.extensions] == ["a", "c"]
    assert paths(result) == ["spec.extensions['b']"]


def test_third_parties_parts_are_bounded() -> None:
    result = overlay_spec(
        {"extensions": {f"k{i:03}": i for i in range(MAX_EXTENSIONS + 5)} | {"": 1}}
    )
    assert len(result.slo.extensions) == MAX_EXTENSIONS
    assert result.refused_count == 2
    assert overlay_spec({"extensions": [1]}).refused_count == 1
