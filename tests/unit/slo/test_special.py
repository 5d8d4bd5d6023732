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


def paths(found: OverlayResult) -> list[str]:
    return [refusal.path for refusal in found.refused]


def test_an_application_is_kept_with_its_class_and_place() -> None:
    place = {"base": "KubepodsBesteffort", "parentDir": "yarn/", "relativePath": "./node//main/"}
    found = applications(
        {"name": "yarn", "qos": "BE", "priority": "koord-batch", "cgroupPath": place},
        {"name": "nginx", "strategy": {}, "qos": "", "priority": None},
    )
    yarn, nginx = found.slo.host_applications
    assert (yarn.name, yarn.qos, yarn.priority) == ("yarn", "BE", "koord-batch")
    assert yarn.cgroup_path is not None
    assert yarn.cgroup_path.base == "KubepodsBesteffort"
    assert yarn.cgroup_path.parts == ("yarn", "node", "main")
    assert (nginx.qos, nginx.priority, nginx.cgroup_path) == ("", "", None)
    assert found.refused == ()


@pytest.mark.parametrize(
    "path",
    ["..", "../x", "a/..", "a/../b", "/etc", "/", "a\nb", "a\x00", "\x7f", "\ud800", 5, ["a"]],
    ids=ascii,
)
@pytest.mark.parametrize("field", ["parentDir", "relativePath"])
def test_an_application_outside_of_its_base_is_left_out(field: str, path: object) -> None:
    place = {"parentDir": "p", "relativePath": "r", field: path}
    found = applications({"name": "a", "cgroupPath": place}, {"name": "b"})
    assert [one.name for one in found.slo.host_applications] == ["b"]
    assert paths(found) == [f"spec.hostApplications[0].cgroupPath.{field}"]


@pytest.mark.parametrize("path", ["a..b", "...", "a/..b/c..", ".", "a b", "ä", "x" * 1024])
def test_dots_and_odd_names_that_lead_nowhere_else_are_allowed(path: str) -> None:
    place = {"parentDir": "p", "relativePath": path}
    assert applications({"name": "a", "cgroupPath": place}).refused == ()


@pytest.mark.parametrize("place", [{}, {"base": "Kubepods"}, {"relativePath": "./"}])
def test_an_application_that_would_be_all_of_its_base_is_left_out(place: Tree) -> None:
    found = applications({"name": "a", "cgroupPath": place})
    assert found.slo.host_applications == ()
    assert paths(found) == ["spec.hostApplications[0].cgroupPath"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\n", "\x1b[0m", "x" * 129, 7, None])
def test_an_application_whose_name_is_no_directory_is_left_out(name: object) -> None:
    found = applications({"name": name}, {"name": "b"})
    assert [one.name for one in found.slo.host_applications] == ["b"]
    assert paths(found) == ["spec.hostApplications[0].name"]


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
    found = applications(item)
    assert found.slo.host_applications == ()
    assert paths(found) == [f"spec.hostApplications[0].{path}"]


def test_a_wrong_priority_class_is_refused_alone() -> None:
    found = applications({"name": "a", "qos": "LS", "priority": "high"})
    assert [(one.name, one.priority) for one in found.slo.host_applications] == [("a", "")]
    assert paths(found) == ["spec.hostApplications[0].priority"]


def test_of_applications_of_one_name_the_first_stands() -> None:
    found = applications({"name": "a", "qos": "LS"}, {"name": "a", "qos": "BE"}, {"name": "b"})
    assert [(one.name, one.qos) for one in found.slo.host_applications] == [("a", "LS"), ("b", "")]
    assert paths(found) == ["spec.hostApplications[1].name"]


@pytest.mark.parametrize("item", [None, 5, "a", []])
def test_what_is_no_application_is_refused_alone(item: object) -> None:
    found = applications(item, {"name": "b"})
    assert [one.name for one in found.slo.host_applications] == ["b"]
    assert paths(found) == ["spec.hostApplications[0]"]


def test_applications_are_bounded() -> None:
    found = applications(*({"name": f"a{i}"} for i in range(MAX_APPLICATIONS + 9)))
    assert len(found.slo.host_applications) == MAX_APPLICATIONS
    assert paths(found) == ["spec.hostApplications"]


def test_block_devices_keep_their_good_values() -> None:
    block = {"name": "sda", "type": "volumegroup", "ioCfg": {"readBPS": -1, "ioWeightPercent": 60}}
    found = overlay_spec(nested(BLKIO, {"enable": True, "blocks": [block]}))
    blkio = found.slo.resource_qos.be_class.blkio
    assert blkio is not None
    assert (blkio.enable, [(b.name, b.type) for b in blkio.blocks]) == (
        True,
        [("sda", "volumegroup")],
    )
    assert (blkio.blocks[0].io_cfg.read_bps, blkio.blocks[0].io_cfg.io_weight_percent) == (None, 60)
    assert paths(found) == [f"spec.{BLKIO}.blocks[0].ioCfg.readBPS"]


@pytest.mark.parametrize(
    "block", [{}, {"name": ""}, {"name": "a\n"}, {"name": "a", "type": "x"}, 5]
)
def test_a_block_device_without_a_valid_name_is_left_out(block: object) -> None:
    found = overlay_spec(nested(BLKIO, {"blocks": [block, {"name": "sdb"}]}))
    blkio = found.slo.resource_qos.be_class.blkio
    assert blkio is not None
    assert [one.name for one in blkio.blocks] == ["sdb"]
    assert found.refused_count == 1


def test_block_devices_are_bounded() -> None:
    found = overlay_spec(nested(f"{BLKIO}.blocks", [{"name": "sda"}] * (MAX_BLOCKS + 1)))
    blkio = found.slo.resource_qos.be_class.blkio
    assert blkio is not None
    assert (len(blkio.blocks), paths(found)) == (MAX_BLOCKS, [f"spec.{BLKIO}.blocks"])


def test_no_block_devices_and_an_empty_list_of_them_differ() -> None:
    assert overlay_spec({}).slo.resource_qos.be_class.blkio is None
    assert overlay_spec(nested(BLKIO, {})).slo.resource_qos.be_class.blkio is not None


def test_scheduler_features_are_names_with_switches() -> None:
    given = {"ID_X": True, "A": False, "no": True, "A\nB": True, "B": "true", "C": None, "": True}
    found = overlay_spec(nested("systemStrategy.schedFeatures", given))
    assert found.slo.system.sched_features == (("A", False), ("ID_X", True))
    place = "spec.systemStrategy.schedFeatures"
    assert paths(found) == [place, f"{place}['B']"]
    many = {f"F{i:03}": True for i in range(MAX_FEATURES + 1)}
    found = overlay_spec(nested("systemStrategy.schedFeatures", many))
    assert (len(found.slo.system.sched_features), paths(found)) == (MAX_FEATURES, [place])


@pytest.mark.parametrize("value", ["0", "10M", "1.5Gi", "50", "2e3", 0, 50, 100])
@pytest.mark.parametrize(
    "field", ["ingressRequest", "ingressLimit", "egressRequest", "egressLimit"]
)
def test_bandwidth_is_a_percentage_or_a_quantity(field: str, value: object) -> None:
    found = overlay_spec(nested(f"resourceQOSStrategy.lsClass.networkQOS.{field}", value))
    network = found.slo.resource_qos.ls_class.network
    names = ("ingress_request", "ingress_limit", "egress_request", "egress_limit")
    assert value in {getattr(network, name) for name in names}
    assert found.refused == ()


@pytest.mark.parametrize("value", ["", "-1", "50%", "x", "1" * 64, -1, 101, 1.5, True, {}])
def test_what_is_neither_leaves_the_bandwidth_alone(value: object) -> None:
    found = overlay_spec(nested("resourceQOSStrategy.lsClass.networkQOS.ingressLimit", value))
    assert found.slo == overlay_spec({}).slo
    assert found.refused_count == 1


def test_the_limit_of_the_schema_counts_and_the_agents_default_without_it() -> None:
    filled = {"ingressLimit": 100, "egressLimit": 100, "ingressRequest": 0, "egressRequest": 0}
    found = overlay_spec(
        nested("resourceQOSStrategy.lsClass.networkQOS", {"enable": True, **filled})
    )
    assert found.slo.resource_qos.ls_class.network.ingress_limit == 100
    assert overlay_spec({}).slo.resource_qos.ls_class.network.ingress_limit == 0


@pytest.mark.parametrize(("value", "text"), [("10G", "10G"), (25000, "25000"), (0, "0")])
def test_the_nodes_bandwidth_is_a_quantity_or_a_number(value: object, text: str) -> None:
    found = overlay_spec(nested("systemStrategy.totalNetworkBandwidth", value))
    assert (found.slo.system.total_network_bandwidth, found.refused) == (text, ())


@pytest.mark.parametrize("value", ["", "-1", "x", -1, 2**63, 1.5, True, []])
def test_what_is_none_leaves_the_nodes_bandwidth_alone(value: object) -> None:
    found = overlay_spec(nested("systemStrategy.totalNetworkBandwidth", value))
    assert found.slo.system.total_network_bandwidth == "0"
    assert found.refused_count == 1


def deep(levels: int) -> Tree:
    tree: Tree = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def test_third_parties_parts_are_kept_unchanged() -> None:
    found = overlay_spec(
        {"extensions": {"b": {"y": [1, 2.5, None], "x": "ä"}, "a": False, "c": None}}
    )
    assert found.slo.extensions == (("a", "false"), ("b", '{"x":"ä","y":[1,2.5,null]}'))
    assert found.refused == ()


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
    found = overlay_spec({"extensions": {"big": value, "small": deep(MAX_DEPTH)}})
    assert [key for key, _ in found.slo.extensions] == ["small"]
    assert paths(found) == ["spec.extensions['big']"]


def test_brackets_in_texts_are_no_levels() -> None:
    value = {"[" * 99: "{" * 99, 'a"[': '\\"[[\\', "\\": ["\\\\", '"']}
    found = overlay_spec({"extensions": {"a": value}})
    assert [json.loads(text) for _, text in found.slo.extensions] == [value]


def test_third_parties_parts_share_one_bound() -> None:
    half = "x" * (MAX_EXTENSION_BYTES // 2)
    found = overlay_spec({"extensions": {"a": half, "b": half, "c": 1}})
    assert [key for key, _ in found.slo.extensions] == ["a", "c"]
    assert paths(found) == ["spec.extensions['b']"]


def test_third_parties_parts_are_bounded() -> None:
    found = overlay_spec(
        {"extensions": {f"k{i:03}": i for i in range(MAX_EXTENSIONS + 5)} | {"": 1}}
    )
    assert len(found.slo.extensions) == MAX_EXTENSIONS
    assert found.refused_count == 2
    assert overlay_spec({"extensions": [1]}).refused_count == 1
