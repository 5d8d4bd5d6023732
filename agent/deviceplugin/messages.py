"""Decisions as the kubelet's messages, and its requests as plain data. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.deviceplugin.resources import ContainerAllocation, KubeletDevice
from proto.gen import deviceplugin_v1beta1_pb2 as pb

API_VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
MAX_LIST_BYTES = 4 << 20  # the kubelet's client takes no larger message
DEVICE_BYTES = 32  # at most, of a device beside its id and NUMA nodes
NODE_BYTES = 13  # at most, of a NUMA node


def encode_registration(endpoint: str, resource: str, options: pb.DevicePluginOptions) -> bytes:
    """Return a `RegisterRequest`."""
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    return request.SerializeToString()


def build_options(*, check_start: bool, choose: bool) -> pb.DevicePluginOptions:
    """Return the options, which are said twice: at the registration, and when asked."""
    return pb.DevicePluginOptions(
        pre_start_required=check_start, get_preferred_allocation_available=choose
    )


def cut_to_message(devices: tuple[KubeletDevice, ...]) -> tuple[KubeletDevice, ...]:
    """Return the first devices that fit one message for certain."""
    left = MAX_LIST_BYTES
    for index, device in enumerate(devices):
        left -= len(device.id.encode()) + DEVICE_BYTES + NODE_BYTES * len(device.numa_nodes)
        if left < 0:
            return devices[:index]
    return devices


def encode_list(devices: Iterable[KubeletDevice]) -> bytes:
    """Return the whole list. A device without NUMA nodes has no topology at all."""
    message = pb.ListAndWatchResponse()
    for device in devices:
        one = message.devices.add(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
        for node in device.numa_nodes:
            one.topology.nodes.add(ID=node)  # node 0 is an empty message that is there
    return message.SerializeToString()


def build_allocate_response(answers: Iterable[ContainerAllocation]) -> pb.AllocateResponse:
    """Return the answer, a container each; what the kubelet has no field for is left out."""
    message = pb.AllocateResponse()
    for answer in answers:
        edits, one = answer.edits, message.container_responses.add()
        one.envs.update(edits.env)
        one.annotations.update(answer.annotations)
        for mount in edits.mounts:
            one.mounts.add(
                container_path=mount.path,
                host_path=mount.host_path,
                read_only="ro" in mount.options,
            )
        for node in edits.nodes:
            one.devices.add(
                container_path=node.path, host_path=node.host_path, permissions=node.permissions
            )
        for name in edits.cdi:
            one.cdi_devices.add(name=name)
    return message
