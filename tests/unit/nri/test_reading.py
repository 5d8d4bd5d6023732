"""The runtime's messages as hooks see them."""

from __future__ import annotations

import pytest

from agent.nri.messages import (
    allows_all_devices,
    parse_container,
    parse_environment,
    parse_resources,
    parse_runtime_container,
    parse_sandbox,
)
from agent.snapshot.container import (
    NO_RESOURCES,
    ContainerState,
    LinuxResources,
    PodSandbox,
    RuntimeContainer,
)
from agent.snapshot.device import DeviceNode
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as calls
from tests.unit.nri.messages import container, pod
from tests.unit.nri_wire.vectors import V17, V18, V22


def rule(
    access: str = "rwm",
    kind: str = "",
    *,
    allow: bool = True,
    major: int | None = None,
    minor: int | None = None,
) -> linux.LinuxDeviceCgroup:
    first = None if major is None else linux.OptionalInt64(value=major)
    second = None if minor is None else linux.OptionalInt64(value=minor)
    return linux.LinuxDeviceCgroup(allow=allow, type=kind, access=access, major=first, minor=second)


def test_the_vector_of_a_creation_is_read() -> None:
    container_request = calls.CreateContainerRequest.FromString(V18)
    sandbox = parse_sandbox(container_request.pod)
    assert sandbox == PodSandbox(
        id="p1",
        uid="u1",
        name="web-0",
        namespace="default",
        annotations=(("k", "v"),),
        cgroup_parent="/kubepods/podu1",
    )
    assert parse_runtime_container(container_request.container) == RuntimeContainer(
        id="c1", sandbox_id="p1", name="main", state=ContainerState.CREATED
    )
    result = parse_container(container_request.container, sandbox)
    assert (result.env, result.mounts) == ((("A", "1"),), ("/data",))
    assert result.annotations == (("k", "v"),)
    assert parse_resources(container_request.container.linux.resources) == LinuxResources(
        shares=1024, quota_us=-1
    )


def test_the_vector_of_an_event_is_read_without_what_it_does_not_tell() -> None:
    change_event = calls.StateChangeEvent.FromString(V17)
    assert change_event.event == calls.REMOVE_POD_SANDBOX
    assert parse_sandbox(change_event.pod) == PodSandbox(id="p1", name="web-0", namespace="default")


def test_labels_and_annotations_are_in_order_so_that_equal_pods_compare_equal() -> None:
    assert parse_sandbox(pod()).labels == (("a", "1"), ("b", "2"))
    assert parse_sandbox(pod()) == parse_sandbox(pod())


def test_the_network_is_the_hosts_only_where_the_pod_says_so() -> None:
    assert not parse_sandbox(pod()).host_network
    assert parse_sandbox(pod(host_network=True)).host_network
    assert not parse_sandbox(wire.PodSandbox(id="p1")).host_network  # nothing is said


def test_a_container_has_its_own_and_its_pods_properties() -> None:
    result = parse_container(container(), parse_sandbox(pod(host_network=True)))
    assert (result.name, result.pod_uid, result.runtime_handler) == ("main", "u1", "nvidia")
    assert (result.protected, result.host_network, result.user) == (False, True, 1000)
    assert result.nodes == (DeviceNode(path="/dev/nvidia0", major=195, minor=0),)
    assert result.label("b") == "2"


def test_an_absent_user_is_unknown_and_not_root() -> None:
    reports = container()
    reports.ClearField("user")
    assert parse_container(reports, parse_sandbox(pod())).user is None
    reports.user.SetInParent()
    assert parse_container(reports, parse_sandbox(pod())).user == 0


def test_variables_keep_their_order_and_their_doubles() -> None:
    assert parse_environment(container().env) == (
        ("A", "1"), ("A", "2"), ("B", ""), ("C", "x=y"), ("D", ""),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "privileged"),
    [
        ([], False),
        ([rule()], True),
        ([rule(kind="a", major=-1)], True),
        ([rule(allow=False), rule("rw", "c", major=195)], False),
        ([rule(allow=False), rule("m", "c")], False),
        ([rule("r")], False),
        ([rule(major=195)], False),
        ([rule(minor=0)], False),
    ],
)
def test_a_container_that_may_use_all_devices_is_privileged(
    rules: list[linux.LinuxDeviceCgroup], privileged: bool
) -> None:
    assert allows_all_devices(rules) is privileged
    reports = container()
    reports.linux.resources.devices.extend(rules)
    assert parse_container(reports, parse_sandbox(pod())).privileged is privileged


@pytest.mark.parametrize(
    ("told", "resources"),
    [
        (linux.LinuxResources(), NO_RESOURCES),
        (linux.LinuxResources.FromString(V22), NO_RESOURCES),  # a limit of 0 is none
        (container().linux.resources, LinuxResources(
            shares=1024, quota_us=200_000, period_us=100_000, memory_bytes=1 << 30)),
        (linux.LinuxResources(cpu=linux.LinuxCPU(cpus="0-3")), LinuxResources(cpus="0-3")),
        (
            linux.LinuxResources(
                cpu=linux.LinuxCPU(quota=linux.OptionalInt64(value=-5)),
                memory=linux.LinuxMemory(limit=linux.OptionalInt64(value=-7)),
            ),
            LinuxResources(quota_us=-1, memory_bytes=-1),
        ),
    ],
)  # fmt: skip
def test_resources_are_the_requested_ones(
    told: linux.LinuxResources, resources: LinuxResources
) -> None:
    assert parse_resources(told) == resources


def test_states_of_newer_runtimes_are_unknown() -> None:
    states = [
        parse_runtime_container(wire.Container(id="c", state=number)).state  # type: ignore[arg-type]  # numbers of the wire
        for number in range(5)
    ]
    assert states == [
        ContainerState.UNKNOWN,
        ContainerState.CREATED,
        ContainerState.PAUSED,
        ContainerState.RUNNING,
        ContainerState.STOPPED,
    ]
    newer = wire.Container.FromString(bytes.fromhex("0a0163") + bytes([0x20, 99]))
    assert parse_runtime_container(newer).state is ContainerState.UNKNOWN
    assert parse_runtime_container(newer).pid is None
