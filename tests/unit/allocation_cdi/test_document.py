from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocation.cdi_document import (
    CdiNameError,
    build_document,
    encode_document,
    split_common,
    to_cdi_edits,
)
from agent.snapshot.edits import (
    BIND_READ_ONLY,
    CdiEdits,
    CdiHook,
    ContainerEdits,
    DeviceNodeEdit,
    MountEdit,
    RlimitEdit,
)
from tests.unit.allocation_cdi.reader import Refused, read


def node(path: str, minor: int = 0, host: str = "", **more: object) -> DeviceNodeEdit:
    facts = {"host_path": host or path, "path": path, "major": 195, "minor": minor, **more}
    return DeviceNodeEdit(**facts)  # type: ignore[arg-type]  # fields of the struct


CTL = node("/dev/nvidiactl", 255)
FILE = MountEdit(host_path="/usr/bin/tool", path="/usr/bin/tool", options=BIND_READ_ONLY)
ONE = {"a": CdiEdits(nodes=(node("/dev/nvidia0"),))}


def written(devices: dict[str, CdiEdits]) -> str:
    return encode_document(build_document("xpu-agent.io/gpu", devices, CdiEdits())).decode()


def test_the_example_of_the_specification() -> None:
    devices = {"0": CdiEdits(nodes=(node("/dev/nvidia0"),), env=(("KOORD_GPU", "0"),))}
    body = build_document("koordinator.sh/gpu", devices, CdiEdits(nodes=(CTL,)))
    numbers = {"type": "c", "major": 195, "permissions": "rw"}
    assert body == {
        "cdiVersion": "0.5.0",
        "kind": "koordinator.sh/gpu",
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "env": ["KOORD_GPU=0"],
                    "deviceNodes": [{"path": "/dev/nvidia0", "minor": 0, **numbers}],
                },
            }
        ],
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl", "minor": 255, **numbers}]},
    }
    read(encode_document(body))


@pytest.mark.parametrize(
    ("devices", "kind", "version"),
    [
        (ONE, "xpu-agent.io/gpu", "0.3.0"),
        ({"a": CdiEdits(mounts=(FILE,))}, "xpu-agent.io/gpu", "0.3.0"),
        ({"a": CdiEdits(env=(("A", "1"),))}, "xpu-agent.io/gpu", "0.3.0"),
        ({"7": ONE["a"]}, "xpu-agent.io/gpu", "0.5.0"),
        ({"0000:18:00.0": ONE["a"]}, "xpu-agent.io/rdma", "0.5.0"),
        ({"a": CdiEdits(nodes=(node("/dev/x", host="/dev/y"),))}, "xpu-agent.io/gpu", "0.5.0"),
        (ONE, "xpu-agent.io/gpu.new", "0.6.0"),
    ],
)
def test_the_version_is_the_least_that_carries_the_content(
    devices: dict[str, CdiEdits], kind: str, version: str
) -> None:
    spec = read(encode_document(build_document(kind, devices, CdiEdits())))
    assert spec.cdi_version == version


def test_what_a_node_a_mount_and_a_hook_say() -> None:
    moved = node("/dev/davinci116", 7, "/dev/vdavinci116", file_mode=0o666)
    hook = CdiHook(name="createContainer", path="/usr/bin/h", args=("h", "x"), env=("A=b",))
    spec = read(written({"a": CdiEdits(nodes=(moved,), mounts=(FILE,), hooks=(hook,))}).encode())
    edits = spec.devices[0].container_edits
    (nodes,) = edits.device_nodes
    assert (nodes.path, nodes.host_path) == ("/dev/davinci116", "/dev/vdavinci116")
    assert (nodes.type, nodes.major, nodes.minor, nodes.file_mode) == ("c", 195, 7, 0o666)
    assert nodes.permissions == "rw"
    assert edits.mounts[0].options == list(BIND_READ_ONLY)
    assert edits.hooks[0].args == ["h", "x"]


@pytest.mark.parametrize("kind", ["", "gpu", "1a/gpu", "a/1", "a-/gpu", "a/gpu-", "a/b/c", "ä/b"])
def test_a_kind_that_no_runtime_reads_is_refused(kind: str) -> None:
    with pytest.raises(CdiNameError):
        build_document(kind, ONE, CdiEdits())


@pytest.mark.parametrize("name", ["", "-a", "a-", "a/b", "a b", "a=b", ":a", "a\n", "ä"])
def test_a_device_name_that_no_runtime_reads_is_refused(name: str) -> None:
    with pytest.raises(CdiNameError):
        build_document("xpu-agent.io/gpu", {name: ONE["a"]}, CdiEdits())


@given(st.text(max_size=20), st.text(max_size=20))
def test_whatever_is_written_the_strict_reader_takes(kind: str, name: str) -> None:
    try:
        body = build_document(f"xpu-agent.io/{kind}", {name: ONE["a"]}, CdiEdits())
    except CdiNameError:
        return
    read(encode_document(body))


def test_only_the_environment_of_every_container_is_kept_and_limits_are_not() -> None:
    limit = RlimitEdit(name="RLIMIT_MEMLOCK", soft=1, hard=1)
    edits = ContainerEdits(nodes=(CTL,), env=(("VISIBLE", "3"), ("PATH", "/x")), rlimits=(limit,))
    assert to_cdi_edits(edits, ("PATH",)) == CdiEdits(nodes=(CTL,), env=(("PATH", "/x"),))


def test_common_edits_are_written_once() -> None:
    partitions = {
        str(i): CdiEdits(nodes=(node(f"/dev/nvidia{i}", i), CTL), mounts=(FILE,), env=(("A", "b"),))
        for i in range(2)
    }
    shared, own = split_common(partitions, {})
    assert shared == CdiEdits(nodes=(CTL,), mounts=(FILE,), env=(("A", "b"),))
    assert own == {str(i): CdiEdits(nodes=(node(f"/dev/nvidia{i}", i),)) for i in range(2)}


def test_an_only_device_keeps_its_own_node_and_one_without_keeps_all() -> None:
    partitions = {"0": CdiEdits(nodes=(node("/dev/nvidia0"), CTL))}
    shared, own = split_common(partitions, {"0": ("/dev/nvidia0",)})
    assert (shared.nodes, own["0"].nodes) == ((CTL,), (node("/dev/nvidia0"),))
    assert split_common(partitions, {}) == (CdiEdits(), partitions)
    assert split_common({}, {}) == (CdiEdits(), {})


def test_the_strict_reader_refuses_what_runtimes_refuse() -> None:
    good = json.loads(written(ONE))
    edits = good["devices"][0]["containerEdits"]
    for broken in (
        {**good, "extra": 1},
        {**good, "devices": []},
        {**good, "devices": good["devices"] * 2},
        {**good, "cdiVersion": "2.0.0"},
        {**good, "devices": [{"name": "0", "containerEdits": edits}]},
        {**good, "devices": [{"name": "a", "containerEdits": {}}]},
        {**good, "devices": [{"name": "a", "containerEdits": {"env": ["A"]}}]},
        {**good, "containerEdits": {"mounts": [{"hostPath": "/a"}]}},
    ):
        with pytest.raises(Refused):
            read(json.dumps(broken).encode())
