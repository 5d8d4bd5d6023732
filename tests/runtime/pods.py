"""Pods and containers as a runtime describes them: with all that the kubelet adds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from proto.gen import nri_container_pb2 as pb
from tests.runtime.spec import Spec
from tests.runtime.versions import Version

CRI = "io.kubernetes.cri"
STATES = ("unknown", "created", "paused", "running", "stopped")


@dataclass(slots=True, eq=False)
class Pod:
    """A pod's sandbox and its containers."""

    message: pb.PodSandbox
    containers: list[CreatedContainer] = field(default_factory=list)
    told: bool = False  # run by now: a Synchronize has it
    stopped: bool = False  # a Synchronize has it all the same, without process and cgroup

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self.message.id


@dataclass(slots=True, eq=False)
class CreatedContainer:
    """A container that was created."""

    pod: Pod
    message: pb.Container
    spec: Spec
    missed: list[str] = field(default_factory=list)  # plug-ins closed on the way, with the reason

    @property
    def id(self) -> str:
        """The container's id."""
        return self.message.id

    @property
    def state(self) -> str:
        """As the runtime tells it."""
        return STATES[self.message.state]


def identity(*of: object) -> str:
    """Return an id as runtimes make them; equal arguments, equal id."""
    return hashlib.sha256(repr(of).encode()).hexdigest()


def uid(*of: object) -> str:
    """Return a pod's uid."""
    text = identity("uid", *of)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:32]))


def sandbox(
    name: str,
    *,
    number: int = 0,
    namespace: str = "default",
    pod_uid: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    runtime_handler: str = "",
    host_network: bool = False,
) -> pb.PodSandbox:
    """Describe a pod's sandbox that has its network and its pause process."""
    own = pod_uid or uid(namespace, name, number)
    slice_name = f"kubepods-burstable-pod{own.replace('-', '_')}.slice"
    pod = pb.PodSandbox(
        id=identity("sandbox", namespace, name, number),
        name=name,
        uid=own,
        namespace=namespace,
        runtime_handler=runtime_handler,
        pid=10_000 + number,
        labels={
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.uid": own,
            **(labels or {}),
        },
        annotations={
            f"{CRI}.container-type": "sandbox",
            f"{CRI}.sandbox-name": name,
            f"{CRI}.sandbox-namespace": namespace,
            "kubernetes.io/config.source": "api",
            **(annotations or {}),
        },
        ips=["10.1.0.7"],
    )
    pod.linux.cgroup_parent = f"/kubepods.slice/kubepods-burstable.slice/{slice_name}"
    pod.linux.cgroups_path = f"{slice_name}:cri-containerd:{pod.id}"
    for kind in ("pid", "ipc", "uts", "mount") + (() if host_network else ("network",)):
        pod.linux.namespaces.add(type=kind)
    return pod


def container(
    pod: pb.PodSandbox,
    name: str,
    *,
    number: int = 0,
    env: Mapping[str, str] | None = None,
    cpu: Mapping[str, int | str] | None = None,
    memory_bytes: int = 0,
) -> pb.Container:
    """Describe a container that is being created: no process and no cgroup yet."""
    created = pb.Container(
        id=identity("container", pod.id, name, number),
        pod_sandbox_id=pod.id,
        name=name,
        args=["/bin/main"],
        labels=dict(pod.labels) | {"io.kubernetes.container.name": name},
        annotations={
            f"{CRI}.container-type": "container",
            f"{CRI}.container-name": name,
            f"{CRI}.image-name": "registry.example/main:1",
            f"{CRI}.sandbox-id": pod.id,
        },
        env=[
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            f"HOSTNAME={pod.name}",
        ],
    )
    created.env.extend(f"{key}={value}" for key, value in (env or {}).items())
    own = f"/var/lib/kubelet/pods/{pod.uid}"
    created.mounts.add(destination="/proc", type="proc", source="proc", options=["nosuid"])
    created.mounts.add(destination="/dev", type="tmpfs", source="tmpfs", options=["nosuid"])
    for destination, source in (
        ("/etc/hosts", f"{own}/etc-hosts"),
        ("/dev/termination-log", f"{own}/containers/{name}/1"),
        ("/var/run/secrets/kubernetes.io/serviceaccount", f"{own}/volumes/token"),
    ):
        created.mounts.add(
            destination=destination, type="bind", source=source, options=["rbind", "rprivate", "rw"]
        )
    created.linux.cgroups_path = f"kubepods.slice:cri-containerd:{created.id}"
    limits = created.linux.resources
    for key, value in {"shares": 1024, "quota": 100_000, "period": 100_000, **(cpu or {})}.items():
        if isinstance(value, str):
            setattr(limits.cpu, key, value)
        else:
            getattr(limits.cpu, key).value = value
    if memory_bytes:
        limits.memory.limit.value = memory_bytes
    return created


def as_told(version: Version, pod: pb.PodSandbox) -> pb.PodSandbox:
    """Return the pod with the fields that this version has."""
    if version.nri >= (0, 8, 0):
        return pod
    pod_sandbox = pb.PodSandbox()
    pod_sandbox.CopyFrom(pod)
    del pod_sandbox.ips[:]
    return pod_sandbox


def as_listed(version: Version, pod: Pod) -> pb.PodSandbox:
    """Return a pod as a Synchronize has it; one that stopped has no task to read from.

    containerd 2.1 and newer read its specification instead.
    """
    reports = pb.PodSandbox()
    reports.CopyFrom(as_told(version, pod.message))
    if pod.stopped:
        reports.pid = 0
    if pod.stopped and not (version.runtime == "containerd" and version.cdi):
        reports.linux.ClearField("namespaces")
        reports.linux.ClearField("cgroups_path")
    return reports


def as_told_container(version: Version, created: pb.Container) -> pb.Container:
    """Return the container with the fields that this version has."""
    if version.rich_containers:
        return created
    reports = pb.Container()
    reports.CopyFrom(created)
    late = ("created_at", "started_at", "finished_at", "exit_code", "status_reason")
    for name in (*late, "status_message", "CDI_devices", "user", "image"):
        reports.ClearField(name)
    return reports
