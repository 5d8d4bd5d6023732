"""The kubelet's list of devices as pods really have them: by grants, and by exchanges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent.errors import ParseError
from agent.model.cluster.pods import ENDED
from agent.model.foreign.device_allocated import KEY, decode_allocated
from agent.model.grant.granted import GrantedDevice
from agent.model.pod import PodView
from agent.model.runtime.served import Held

if TYPE_CHECKING:
    from proto.gen import podresources_v1_pb2 as pb

# as koordlet's proxy names them; consumers such as dcgm-exporter look for these
RESOURCE_OF: Mapping[str, str] = MappingProxyType(
    {"gpu": "nvidia.com/gpu", "rdma": "koordinator.sh/rdma"}
)

Ids = Mapping[str, tuple[str, ...]]  # resource name -> device ids
Container = tuple[str, str, str]  # namespace, name of the pod, name of the container
Exchanges = Mapping[tuple[str, str], str]  # (resource name, id) -> id of the device that is given


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


def with_grants(reply: bytes, pods: Iterable[PodView], held: Iterable[Held] = ()) -> bytes:
    """Return the kubelet's answer to List with each pod's grant at its first container.

    What the kubelet chose of a granted resource is left out: the pod has its grant in place of it.
    Where a device was exchanged, as `held` says, the list names the one that the container has.
    Raises `ParseError` if the answer is not one.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only where it is served

    from proto.gen import podresources_v1_pb2 as pb  # noqa: PLC0415 - the same

    try:
        listed = pb.ListPodResourcesResponse.FromString(reply)
    except DecodeError as error:
        raise ParseError("pod resources: no answer to List", "") from error
    known = tuple(pods)
    grants, exchanges = grants_of(known), exchanges_of(known, held)
    for pod in listed.pod_resources:
        ids = grants.get((pod.namespace, pod.name), {})
        for container in pod.containers:
            given = exchanges.get((pod.namespace, pod.name, container.name), {})
            _correct(container, given, ids)
        if not ids or not pod.containers:
            continue
        devices = pod.containers[0].devices
        for name, found in ids.items():
            devices.add(resource_name=name, device_ids=found)
        devices.sort(key=lambda entry: entry.resource_name)
    return listed.SerializeToString()


def exchanges_of(pods: Iterable[PodView], held: Iterable[Held]) -> Mapping[Container, Exchanges]:
    """Return the exchanged devices of each container: those that it has for the kubelet's ids."""
    names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
    found: dict[Container, dict[tuple[str, str], str]] = {}
    for one in held:
        if one.exchanges and one.pod_uid in names:
            of_container = found.setdefault((*names[one.pod_uid], one.container), {})
            of_container.update(((one.resource, name), given) for name, given in one.exchanges)
    return found


def _correct(container: pb.ContainerResources, exchanges: Exchanges, granted: Ids) -> None:
    kept = [entry for entry in container.devices if entry.resource_name not in granted]
    if len(kept) < len(container.devices):
        del container.devices[:]
        container.devices.extend(kept)
    for entry in container.devices if exchanges else ():
        name = entry.resource_name
        ids = [exchanges.get((name, device_id), device_id) for device_id in entry.device_ids]
        if ids != list(entry.device_ids):
            entry.device_ids[:] = ids
            entry.ClearField("topology")  # that of another device


def _over(pod: PodView) -> bool:
    return pod.terminating or pod.phase in ENDED
