"""The kubelet's list of devices with those added that Koordinator's scheduler granted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from agent.errors import ParseError
from agent.model.cluster.pods import ENDED
from agent.model.foreign.device_allocated import KEY, decode_allocated
from agent.model.grant.granted import GrantedDevice
from agent.model.pod import PodView

# as koordlet's proxy names them; consumers such as dcgm-exporter look for these
RESOURCE_OF: Mapping[str, str] = MappingProxyType(
    {"gpu": "nvidia.com/gpu", "rdma": "koordinator.sh/rdma"}
)

Ids = Mapping[str, tuple[str, ...]]  # resource name -> device ids


def granted_ids(grant: Iterable[GrantedDevice]) -> Ids:
    """Return the ids by resource; types that no resource stands for are left out.

    Where virtual functions were granted they are the devices, not their card.
    """
    ids: dict[str, list[str]] = {}
    for device in grant:
        name = RESOURCE_OF.get(device.type)
        found = device.vfs or ((device.id,) if device.id else ())
        if name is not None and found:
            ids.setdefault(name, []).extend(found)
    return {name: tuple(dict.fromkeys(found)) for name, found in ids.items()}


def grants_of(pods: Iterable[PodView]) -> Mapping[tuple[str, str], Ids]:
    """Return what is granted, by namespace and name; an annotation that is odd grants nothing.

    Of two pods of one name, as while one replaces the other, the one that stays counts.
    """
    grants: dict[tuple[str, str], Ids] = {}
    for pod in sorted(pods, key=lambda pod: not _over(pod)):
        grants.pop((pod.namespace, pod.name), None)
        text = pod.annotation(KEY)
        if text is None:
            continue
        try:
            ids = granted_ids(decode_allocated(text))
        except ParseError:
            continue
        if ids:
            grants[pod.namespace, pod.name] = ids
    return grants


def with_grants(reply: bytes, pods: Iterable[PodView]) -> bytes:
    """Return the kubelet's answer to List with each pod's grant at its first container.

    Raises `ParseError` if the answer is not one.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only where it is served

    from proto.gen import podresources_v1_pb2 as pb  # noqa: PLC0415 - the same

    try:
        listed = pb.ListPodResourcesResponse.FromString(reply)
    except DecodeError as error:
        raise ParseError("pod resources: no answer to List", "") from error
    grants = grants_of(pods)
    for pod in listed.pod_resources:
        ids = grants.get((pod.namespace, pod.name))
        if ids is None or not pod.containers:
            continue
        devices = pod.containers[0].devices
        for name, found in ids.items():
            devices.add(resource_name=name, device_ids=found)
        devices.sort(key=lambda entry: entry.resource_name)
    return listed.SerializeToString()


def _over(pod: PodView) -> bool:
    return pod.terminating or pod.phase in ENDED
