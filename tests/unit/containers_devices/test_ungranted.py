"""Containers that ask a vendor's runtime for devices and were granted none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from agent.config.containers import HookSettings
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, ContainerSpec
from agent.snapshot.device import DeviceNode
from agent.snapshot.device_plugin import DevicePluginView, KubeletAllocation
from agent.snapshot.host_devices import HostDevices
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView, ResourceRequest
from tests.unit.allocation.made import WHOLE, entry, pod, text
from tests.unit.containers_devices.made import created, device, env, reasons
from tests.unit.vendors_injection.made import UUIDS, gpu, nvidia_host

CARDS = (device(gpu(0)),)
HOST = {"nvidia": nvidia_host(default_handler="nvidia")}
ASKS = ContainerSpec(name="worker", env=(("NVIDIA_VISIBLE_DEVICES", "all"),))
QUIET = pod(1)
NOBODY = DevicePluginView()
VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}


def answer(
    mode: str,
    container: ContainerSpec = ASKS,
    view: PodView | None = QUIET,
    box: Mapping[str, object] | None = None,
    means: Mapping[str, HostDevices] = HOST,
    served: DevicePluginView = NOBODY,
) -> Adjustment:
    return created(
        None,
        means,
        CARDS,
        container=container,
        view=view,
        box=box,
        hooks=HookSettings(ungranted=mode, protected_namespaces=("kube-system",)),
        before=lambda now: replace(now, served=SnapshotPart(served, 1.0)),
    )


@pytest.mark.parametrize(
    ("mode", "variables", "told"),
    [("off", {}, []), ("warn", {}, ["UngrantedDevices"]), ("void", VOID, ["UngrantedDevices"])],
)
def test_the_setting_decides_what_becomes_of_them(
    mode: str, variables: dict[str, str], told: list[str]
) -> None:
    result = answer(mode)
    assert env(result) == variables
    assert reasons(result) == told


@pytest.mark.parametrize(
    ("container", "box"),
    [
        (ContainerSpec(name="worker", env=ASKS.env, privileged=True), {}),
        (ContainerSpec(name="worker", env=ASKS.env, protected=True), {}),
        (ASKS, {"namespace": "kube-system"}),
        (ASKS, {"uid": "own"}),
    ],
)
def test_privileged_and_protected_containers_are_reported_and_left_alone(
    container: ContainerSpec, box: dict[str, object]
) -> None:
    result = answer("void", container, None if "uid" in box else QUIET, box)
    assert (env(result), reasons(result)) == ({}, ["UngrantedDevices"])


def test_devices_of_another_plugin_are_neither_removed_nor_reported() -> None:
    resource_request = ResourceRequest(container="worker", resource="nvidia.com/gpu", count=1)
    assert answer("void", view=pod(1, asks=(resource_request,))) == NO_ADJUSTMENT
    device_node = DeviceNode(path="/dev/nvidia0", major=195, minor=0)
    assert (
        answer("void", ContainerSpec(name="worker", env=ASKS.env, nodes=(device_node,)))
        == NO_ADJUSTMENT
    )
    plugin_view = DevicePluginView(
        held=(KubeletAllocation(pod_uid=QUIET.uid, resource="nvidia.com/gpu"),)
    )
    assert answer("void", served=plugin_view) == NO_ADJUSTMENT
    elsewhere = KubeletAllocation(pod_uid=QUIET.uid, resource="nvidia.com/gpu", container="init")
    assert env(answer("void", served=DevicePluginView(held=(elsewhere,)))) == VOID
    other = pod(1, asks=(ResourceRequest(container="init", resource="nvidia.com/gpu", count=1),))
    assert env(answer("void", view=other)) == VOID


def test_nothing_is_withheld_from_a_pod_that_the_cluster_has_not_listed() -> None:
    stranger = {"uid": "6f6f0000-0000-4000-8000-00000000abcd"}
    result = answer("void", box=stranger)
    assert (env(result), reasons(result)) == ({}, ["UngrantedDevices"])
    # an agent without a cluster is told of none, ever
    assert env(answer("void", view=None)) == VOID


@pytest.mark.parametrize("value", ["", "void", "none"])
def test_a_container_without_a_request_is_left_alone(value: str) -> None:
    quiet = ContainerSpec(name="worker", env=(("NVIDIA_VISIBLE_DEVICES", value),))
    assert answer("void", quiet) == NO_ADJUSTMENT
    assert answer("void", ContainerSpec(name="worker")) == NO_ADJUSTMENT


def test_another_runtime_does_not_read_the_variable() -> None:
    assert answer("void", means={"nvidia": nvidia_host()}) == NO_ADJUSTMENT
    assert answer("void", box={"runtime_handler": "runc"}) == NO_ADJUSTMENT


def test_a_granted_container_has_its_grant_whatever_it_requests() -> None:
    annotation = text(entry(CARDS[0], WHOLE))
    result = created(annotation, HOST, CARDS, container=ASKS, view=pod(1, annotation))
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}


@pytest.mark.parametrize(
    ("vendor", "handler", "variable", "voided"),
    [
        ("ascend", "ascend-docker-runtime", "ASCEND_VISIBLE_DEVICES", True),
        ("cambricon", "cambricon", "CAMBRICON_VISIBLE_DEVICES", False),
    ],
)
def test_each_maker_has_its_own_variable_and_cambricons_knows_no_value_for_none(
    vendor: str, handler: str, variable: str, voided: bool
) -> None:
    means = {vendor: HostDevices(default_handler=handler)}
    result = answer("void", ContainerSpec(name="worker", env=((variable, "0"),)), means=means)
    assert env(result) == ({variable: "void"} if voided else {})
    assert reasons(result) == ["UngrantedDevices"]


@pytest.mark.parametrize(
    ("variables", "asks"),
    [
        ((("CUDA_VERSION", "9.0"),), True),
        ((("CUDA_VERSION", "12.4"), ("NVIDIA_REQUIRE_CUDA", "cuda>=12.4")), False),
        ((("CUDA_VERSION", ""),), False),
        ((("CUDA_VERSION", "9.0"), ("NVIDIA_VISIBLE_DEVICES", "")), False),
        ((("NVIDIA_REQUIRE_CUDA", "cuda>=12.4"),), False),
    ],
)
def test_an_old_image_without_a_request_gets_all_devices_of_the_makers_runtime(
    variables: tuple[tuple[str, str], ...], asks: bool
) -> None:
    result = answer("void", ContainerSpec(name="worker", env=variables))
    assert env(result) == (VOID if asks else {})
    assert reasons(result) == (["UngrantedDevices"] if asks else [])


@pytest.mark.parametrize(
    ("mode", "value", "variables", "told"),
    [
        ("void", "enabled", {"NVIDIA_MOFED": "void"}, ["UngrantedDevices"]),
        ("warn", "enabled", {}, ["UngrantedDevices"]),
        ("void", "disabled", {}, []),
    ],
)
def test_a_card_does_not_bring_all_rdma_devices_of_the_host(
    mode: str, value: str, variables: dict[str, str], told: list[str]
) -> None:
    container = ContainerSpec(name="worker", env=(("NVIDIA_MOFED", value),))
    result = created(
        text(entry(CARDS[0], WHOLE)),
        HOST,
        CARDS,
        container=container,
        hooks=HookSettings(ungranted=mode),
    )
    assert env(result) == {"NVIDIA_VISIBLE_DEVICES": UUIDS[0], **variables}
    assert reasons(result) == told
