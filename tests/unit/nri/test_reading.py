"""The runtime's messages as hooks see them."""

from __future__ import annotations

import pytest

from agent.model.device import DeviceNode
from agent.model.runtime.adjustment import NO_RESOURCES, Resources
from agent.model.runtime.seen import ContainerSeen, ContainerState, SandboxSeen
from agent.nri.reading import container_of, env_of, may_use_all, resources_of, sandbox_of, seen_of
from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux
from proto.gen import nri_plugin_pb2 as calls
from tests.unit.nri.told import container, pod
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
    told = calls.CreateContainerRequest.FromString(V18)
    sandbox = sandbox_of(told.pod)
    assert sandbox == SandboxSeen(
        id="p1",
        uid="u1",
        name="web-0",
        namespace="default",
        annotations=(("k", "v"),),
        cgroup_parent="/kubepods/podu1",
    )
    assert seen_of(told.container) == ContainerSeen(
        id="c1", sandbox_id="p1", name="main", state=ContainerState.CREATED
    )
    found = container_of(told.container, sandbox)
    assert (found.env, found.mounts) == ((("A", "1"),), ("/data",))
    assert found.annotations == (("k", "v"),)
    assert resources_of(told.container.linux.resources) == Resources(shares=1024, quota_us=-1)


def test_the_vector_of_an_event_is_read_without_what_it_does_not_tell() -> None:
    told = calls.StateChangeEvent.FromString(V17)
    assert told.event == calls.REMOVE_POD_SANDBOX
    assert sandbox_of(told.pod) == SandboxSeen(id="p1", name="web-0", namespace="default")


def test_labels_and_annotations_are_in_order_so_that_equal_pods_compare_equal() -> None:
    assert sandbox_of(pod()).labels == (("a", "1"), ("b", "2"))
    assert sandbox_of(pod()) == sandbox_of(pod())


def test_the_network_is_the_hosts_only_where_the_pod_says_so() -> None:
    assert not sandbox_of(pod()).host_network
    assert sandbox_of(pod(host_network=True)).host_network
    assert not sandbox_of(wire.PodSandbox(id="p1")).host_network  # nothing is said


def test_a_container_has_its_own_and_its_pods_properties() -> None:
    found = container_of(container(), sandbox_of(pod(host_network=True)), protected=True)
    assert (found.name, found.pod_uid, found.runtime_handler) == ("main", "u1", "nvidia")
    assert (found.protected, found.host_network, found.user) == (True, True, 1000)
    assert found.nodes == (DeviceNode(path="/dev/nvidia0", major=195, minor=0),)
    assert found.label("b") == "2"


def test_a_user_that_is_not_told_is_unknown_and_not_root() -> None:
    told = container()
    told.ClearField("user")
    assert container_of(told, sandbox_of(pod())).user is None
    told.user.SetInParent()
    assert container_of(told, sandbox_of(pod())).user == 0


def test_variables_keep_their_order_and_their_doubles() -> None:
    assert env_of(container().env) == (
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
def test_who_may_use_all_devices_is_privileged(
    rules: list[linux.LinuxDeviceCgroup], privileged: bool
) -> None:
    assert may_use_all(rules) is privileged
    told = container()
    told.linux.resources.devices.extend(rules)
    assert container_of(told, sandbox_of(pod())).privileged is privileged


@pytest.mark.parametrize(
    ("told", "resources"),
    [
        (linux.LinuxResources(), NO_RESOURCES),
        (linux.LinuxResources.FromString(V22), NO_RESOURCES),  # a limit of 0 is none
        (container().linux.resources, Resources(
            shares=1024, quota_us=200_000, period_us=100_000, memory_bytes=1 << 30)),
        (linux.LinuxResources(cpu=linux.LinuxCPU(cpus="0-3")), Resources(cpus="0-3")),
        (
            linux.LinuxResources(
                cpu=linux.LinuxCPU(quota=linux.OptionalInt64(value=-5)),
                memory=linux.LinuxMemory(limit=linux.OptionalInt64(value=-7)),
            ),
            Resources(quota_us=-1, memory_bytes=-1),
        ),
    ],
)  # fmt: skip
def test_resources_are_those_asked_for(told: linux.LinuxResources, resources: Resources) -> None:
    assert resources_of(told) == resources


def test_states_of_newer_runtimes_are_unknown() -> None:
    states = [seen_of(wire.Container(id="c", state=number)).state for number in range(5)]  # type: ignore[arg-type]  # numbers of the wire
    assert states == [
        ContainerState.UNKNOWN,
        ContainerState.CREATED,
        ContainerState.PAUSED,
        ContainerState.RUNNING,
        ContainerState.STOPPED,
    ]
    newer = wire.Container.FromString(bytes.fromhex("0a0163") + bytes([0x20, 99]))
    assert seen_of(newer).state is ContainerState.UNKNOWN
    assert seen_of(newer).pid is None
