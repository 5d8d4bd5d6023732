"""Messages of the device plug-in API: renders decisions, parses requests. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from agent.deviceplugin.resources import ContainerAllocation, KubeletDevice
from proto.gen import deviceplugin_v1beta1_pb2 as pb

API_VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
MAX_LIST_BYTES = 4 << 20  # the kubelet's client accepts no larger message
DEVICE_BYTES = 32  # upper bound for a device without its id and NUMA nodes
NODE_BYTES = 13  # upper bound for a NUMA node


def encode_registration(endpoint: str, resource: str, options: pb.DevicePluginOptions) -> bytes:
    """Return a `RegisterRequest`."""
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=resource, options=options
    )
    return request.SerializeToString()


def build_options(*, check_start: bool, choose: bool) -> pb.DevicePluginOptions:
    """Return the options, which the kubelet gets at the registration and on request."""
    return pb.DevicePluginOptions(
        pre_start_required=check_start, get_preferred_allocation_available=choose
    )


def cut_to_message(devices: tuple[KubeletDevice, ...]) -> tuple[KubeletDevice, ...]:
    """Return the longest start of the list that surely fits one message."""
    remaining_bytes = MAX_LIST_BYTES
    for index, device in enumerate(devices):
        remaining_bytes -= (
            len(device.id.encode()) + DEVICE_BYTES + NODE_BYTES * len(device.numa_nodes)
        )
        if remaining_bytes < 0:
            return devices[:index]
    return devices


def encode_list(devices: Iterable[KubeletDevice]) -> bytes:
    """Return a ListAndWatchResponse. A device without NUMA nodes has no topology."""
    message = pb.ListAndWatchResponse()
    for device in devices:
        entry = message.devices.add(ID=device.id, health=HEALTHY if device.healthy else UNHEALTHY)
        for node in device.numa_nodes:
            # node 0 is encoded as an empty message, which must be present
            entry.topology.nodes.add(ID=node)
    return message.SerializeToString()


def build_allocate_response(answers: Iterable[ContainerAllocation]) -> pb.AllocateResponse:
    """Return the response; fields that the kubelet does not have are left out."""
    message = pb.AllocateResponse()
    for answer in answers:
        edits, response = answer.edits, message.container_responses.add()
        response.envs.update(edits.env)
        response.annotations.update(answer.annotations)
        for mount in edits.mounts:
            response.mounts.add(
                container_path=mount.path,
                host_path=mount.host_path,
                read_only="ro" in mount.options,
            )
        for node in edits.nodes:
            response.devices.add(
                container_path=node.path, host_path=node.host_path, permissions=node.permissions
            )
        for name in edits.cdi:
            response.cdi_devices.add(name=name)
    return message
