"""Messages as a runtime sends them: a pod, a container."""

from __future__ import annotations

from proto.gen import nri_container_pb2 as wire
from proto.gen import nri_linux_pb2 as linux


def pod(key: str = "p1", uid: str = "u1", *, host_network: bool = False) -> wire.PodSandbox:
    """Return a pod with labels and annotations."""
    spaces = [linux.LinuxNamespace(type="ipc", path="/proc/7/ns/ipc")]
    if not host_network:
        spaces.append(linux.LinuxNamespace(type="network", path="/proc/7/ns/net"))
    return wire.PodSandbox(
        id=key,
        name="web-0",
        uid=uid,
        namespace="default",
        labels={"b": "2", "a": "1"},
        annotations={"k": "v"},
        runtime_handler="nvidia",
        pid=7,
        linux=wire.LinuxPodSandbox(cgroup_parent="/kubepods/podu1", namespaces=spaces),
    )


def container(key: str = "c1", sandbox: str = "p1") -> wire.Container:
    """Return a container that is being created."""
    return wire.Container(
        id=key,
        pod_sandbox_id=sandbox,
        name="main",
        env=["A=1", "A=2", "B=", "C=x=y", "=z", "", "D"],
        mounts=[wire.Mount(destination="/data", type="bind", source="/host/data")],
        linux=wire.LinuxContainer(
            devices=[
                linux.LinuxDevice(path="/dev/nvidia0", type="c", major=195, minor=0),
                linux.LinuxDevice(path="/dev/sda", type="b", major=8, minor=0),
            ],
            resources=linux.LinuxResources(
                cpu=linux.LinuxCPU(
                    shares=linux.OptionalUInt64(value=1024),
                    quota=linux.OptionalInt64(value=200_000),
                    period=linux.OptionalUInt64(value=100_000),
                ),
                memory=linux.LinuxMemory(limit=linux.OptionalInt64(value=1 << 30)),
            ),
        ),
        user=wire.User(uid=1000),
    )
