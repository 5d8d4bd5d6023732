"""What a runtime asks of a plug-in on a real node: 6.8 KB for one container."""

from __future__ import annotations

import json

from proto.gen import nri_container_pb2 as pb
from proto.gen import nri_plugin_pb2 as nri
from tests.runtime.pods import container, sandbox

MINOR = 5  # of a card that no other pod of the bench was granted
GRANT = {
    "gpu": [
        {
            "minor": MINOR,
            "resources": {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory": "81559Mi",
                "koordinator.sh/gpu-memory-ratio": "100",
            },
        }
    ]
}
LABELS, ANNOTATIONS, VARIABLES, MOUNTS = 9, 3, 28, 15


def pod(number: int = 0, *, allocations: bool = True) -> pb.PodSandbox:
    """Return a pod with 12 labels and 8 annotations."""
    annotations = {f"example.com/annotation-{i}": "x" * 60 for i in range(ANNOTATIONS)}
    if allocations:
        annotations["scheduling.koordinator.sh/device-allocated"] = json.dumps(GRANT)
    return sandbox(
        f"train-{number}",
        number=number,
        labels={f"app.kubernetes.io/label-{i}": f"value-{i}" for i in range(LABELS)},
        annotations=annotations,
    )


def pod_object(of: pb.PodSandbox, node: str) -> dict[str, object]:
    """Return the pod of a granted sandbox as the API server has it: it requests what it has."""
    container = {"name": "main", "resources": {"limits": GRANT["gpu"][0]["resources"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": of.name,
            "namespace": of.namespace,
            "uid": of.uid,
            "annotations": dict(of.annotations),
        },
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Pending"},
    }


def new_container(of: pb.PodSandbox, number: int) -> pb.Container:
    """Return a container with 30 variables and 20 mounts."""
    variables = {f"TRAIN_SERVICE_PORT_{i}": f"tcp://10.96.0.{i}:80/path" for i in range(VARIABLES)}
    created = container(of, "main", number=number, env=variables, memory_bytes=64 << 30)
    for i in range(MOUNTS):
        created.mounts.add(
            destination=f"/mnt/volume-{i}",
            type="bind",
            source=f"/var/lib/kubelet/pods/{of.uid}/volumes/kubernetes.io~configmap/volume-{i}",
            options=["rbind", "rprivate", "rw"],
        )
    return created


def creation(of: pb.PodSandbox, number: int) -> bytes:
    """Return the question what a new container is to be."""
    created = new_container(of, number)
    return nri.CreateContainerRequest(pod=of, container=created).SerializeToString()


def picture(pods: int, containers: int) -> bytes:
    """Return all of a node: pods with so many running containers each."""
    message = nri.SynchronizeRequest()
    for number in range(pods):
        one = message.pods.add()
        one.CopyFrom(pod(number, allocations=False))
        for index in range(containers):
            created = new_container(one, number * containers + index)
            created.state, created.pid = pb.CONTAINER_RUNNING, 1000 + number
            message.containers.append(created)
    return message.SerializeToString()
