"""Pods as a kubelet asks the runtime for them: metadata, cgroup, annotations, containers."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proto.gen import cri_config_v1_pb2 as pb
from tests.containerd.runtime import image
from tests.containerd.runtime.running import Containerd

NAMESPACE = "team-a"
NAMESPACES = pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER)  # as a kubelet's default
_numbers = itertools.count()


@dataclass
class Pod:
    """One pod on a runtime, in the network of the host: no CNI is needed."""

    runtime: Containerd
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: f"pod-{next(_numbers)}")
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    handler: str = ""  # of a runtime class
    id: str = ""
    attempt: int = 0  # counts its sandboxes

    @property
    def cgroup(self) -> str:
        """As the runtime is told it, and the agent sees it."""
        return f"/kubepods/burstable/pod{self.uid}"

    @property
    def config(self) -> pb.PodSandboxConfig:
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(
                name=self.name, uid=self.uid, namespace=NAMESPACE, attempt=self.attempt
            ),
            labels={
                "io.kubernetes.pod.name": self.name,
                "io.kubernetes.pod.namespace": NAMESPACE,
                "io.kubernetes.pod.uid": self.uid,
                **self.labels,
            },
            annotations=dict(self.annotations),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=self.cgroup,
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=NAMESPACES),
            ),
        )

    def run(self) -> Pod:
        """Make the sandbox."""
        self.id = self.runtime.cri.run_pod(self.config, self.handler)
        return self

    def run_again(self) -> Pod:
        """Stop the sandbox and make another, as a kubelet does after its pause process ended."""
        self.runtime.cri.stop_pod(self.id)
        self.attempt += 1
        return self.run()

    def create(
        self,
        name: str = "main",
        *,
        command: Sequence[str] = (),
        env: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        mounts: Sequence[pb.Mount] = (),
        devices: Sequence[pb.Device] = (),
        cdi: Sequence[str] = (),
        resources: pb.LinuxContainerResources | None = None,
        from_image: str = image.NAME,
        attempt: int = 0,
    ) -> str:
        """Create a container that sleeps; return its id."""
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=from_image),
            command=command,
            envs=[pb.KeyValue(key=key, value=value) for key, value in _pairs(env)],
            mounts=mounts,
            devices=devices,
            CDI_devices=[pb.CDIDevice(name=name) for name in cdi],
            labels={"io.kubernetes.container.name": name},
            linux=pb.LinuxContainerConfig(
                resources=resources,
                security_context=pb.LinuxContainerSecurityContext(namespace_options=NAMESPACES),
            ),
        )
        return self.runtime.cri.create(self.id, config, self.config)

    def start(self, name: str = "main", **more: object) -> str:
        """Create and start a container; return its id."""
        container_id = self.create(name, **more)  # type: ignore[arg-type]  # as `create` says
        self.runtime.cri.start(container_id)
        return container_id


def _pairs(env: Mapping[str, str] | Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return variables as they are written: pairs may name one twice, as image and pod may."""
    return tuple(env.items()) if isinstance(env, Mapping) else env
