"""The pod of the rendered DaemonSet, as a kubelet asks a real runtime for it.

User, capabilities, seccomp profile, namespaces, mounts and variables are those of the manifest.
Four things differ: the image is Python and this checkout, mounted from this machine; folders of
the node other than `KERNEL_FOLDERS` are below the runtime's own folder; the address of the metrics
is a free port of loopback; later mounts of the node do not appear, because its mounts are private.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from proto.gen import cri_config_v1_pb2 as pb
from tests.apiserver import ApiServer
from tests.containerd.agent_side.whole import MAJOR, WHOLE
from tests.containerd.runtime import image
from tests.containerd.runtime.running import Containerd
from tests.patience import PATIENCE_S
from tests.unit.daemonset.manifests import Object, the

ROOT = Path(__file__).resolve().parents[3]
CARD_NODE = f"/dev/xpu-card-{os.getpid()}"
CARD = {
    "uuid": "FAKE-0",
    "minor": 0,
    "memory_bytes": 1 << 36,
    "resources": WHOLE,
    "nodes": [{"path": CARD_NODE, "major": MAJOR, "minor": 0}],
}
SECCOMP = ROOT / "daemonset" / "seccomp"  # what an administrator puts onto every node
NODE = "node-a"
NRI_FOLDER = "/var/run/nri"
KERNEL_FOLDERS = ("/sys", "/sys/fs/cgroup", "/dev", "/")
IMAGE_FOLDERS = ("/usr", "/lib", "/lib64")
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
# what a kubelet asks the runtime to hide from a container with the default `procMount`
MASKED = (
    *("/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
    "/sys/devices/virtual/powercap",
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class DaemonPod:
    """A running pod of the DaemonSet."""

    runtime: Containerd
    container_id: str
    port: int
    log: Path

    def get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.port}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it is so."""
        until_s = time.monotonic() + PATIENCE_S
        while not self._holds(holds):
            assert time.monotonic() < until_s, f"{what}\n{self.output[-4000:]}"
            time.sleep(0.1)

    def _holds(self, holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except urllib.error.URLError:  # it does not serve yet
            return False

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def start(
    runtime: Containerd, objects: tuple[Object, ...], api: ApiServer, uid: str, **env: str
) -> DaemonPod:
    """Start the pod of the DaemonSet among the objects; `env` is added to its variables."""
    daemon = the(objects, "DaemonSet")
    spec = daemon["spec"]["template"]["spec"]
    folder = runtime.folder / f"pod-{uid}"
    folder.mkdir()
    port = _free_port()
    writer = _Folders(runtime.folder, folder, spec, objects, port)
    sandbox = _sandbox(spec, uid, folder)
    (container,) = spec["containers"]
    pod_id = runtime.cri.run_pod(sandbox, spec.get("runtimeClassName", ""))
    config = _container(spec, container, list(writer.mounts(container)))
    variables = {**_variables(container, uid), **_account(api, folder), **env}
    config.envs.extend(pb.KeyValue(key=key, value=value) for key, value in variables.items())
    config.mounts.append(
        pb.Mount(container_path=ACCOUNT_FOLDER, host_path=str(folder / "account"), readonly=True)
    )
    container_id = runtime.cri.create(pod_id, config, sandbox)
    runtime.cri.start(container_id)
    return DaemonPod(runtime, container_id, port, folder / config.log_path)


def _sandbox(spec: Object, uid: str, folder: Path) -> pb.PodSandboxConfig:
    return pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(name=f"xpu-agent-{uid}", uid=uid, namespace="xpu-agent"),
        log_directory=str(folder),
        labels={
            "io.kubernetes.pod.name": f"xpu-agent-{uid}",
            "io.kubernetes.pod.namespace": "xpu-agent",
            "io.kubernetes.pod.uid": uid,
        },
        linux=pb.LinuxPodSandboxConfig(
            cgroup_parent=f"/kubepods/burstable/pod{uid}",
            security_context=pb.LinuxSandboxSecurityContext(
                namespace_options=_namespaces(spec),
                privileged=_is_privileged(spec),
            ),
        ),
    )


def _is_privileged(spec: Object) -> bool:
    return any(one["securityContext"].get("privileged", False) for one in spec["containers"])


def _namespaces(spec: Object) -> pb.NamespaceOption:
    assert spec["hostNetwork"]
    pid = pb.NODE if spec.get("hostPID") else pb.CONTAINER
    return pb.NamespaceOption(network=pb.NODE, pid=pid)


def _container(spec: Object, container: Object, mounts: list[pb.Mount]) -> pb.ContainerConfig:
    context = {**spec.get("securityContext", {}), **container["securityContext"]}
    capabilities = context.get("capabilities", {})
    privileged = context.get("privileged", False)
    security = pb.LinuxContainerSecurityContext(
        namespace_options=_namespaces(spec),
        privileged=privileged,
        readonly_rootfs=context["readOnlyRootFilesystem"],
        no_new_privs=not context.get("allowPrivilegeEscalation", True),
        run_as_user=pb.Int64Value(value=context["runAsUser"]),
        capabilities=pb.Capability(
            add_capabilities=capabilities.get("add", ()),
            drop_capabilities=capabilities.get("drop", ()),
        ),
        masked_paths=() if privileged else MASKED,
        readonly_paths=() if privileged else READ_ONLY,
        seccomp=_seccomp(context.get("seccompProfile")),
    )
    if "runAsGroup" in context:
        security.run_as_group.value = context["runAsGroup"]
    return pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="agent"),
        image=pb.ImageSpec(image=image.NAME),
        command=[sys.executable, "-m", "agent", *container["args"]],
        working_dir=str(ROOT),
        mounts=[*_image_mounts(), *mounts],
        log_path="agent.log",
        linux=pb.LinuxContainerConfig(
            resources=pb.LinuxContainerResources(cpu_shares=51), security_context=security
        ),
    )


def _seccomp(profile: Mapping[str, str] | None) -> pb.SecurityProfile:
    if profile is None:
        return pb.SecurityProfile(profile_type=pb.SecurityProfile.Unconfined)
    if profile["type"] == "Localhost":
        return pb.SecurityProfile(
            profile_type=pb.SecurityProfile.Localhost,
            localhost_ref=str(SECCOMP / Path(profile["localhostProfile"]).name),
        )
    return pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)


def _image_mounts() -> Iterator[pb.Mount]:
    for path in {*IMAGE_FOLDERS, sys.base_prefix, str(ROOT)}:
        if not any(path.startswith(f"{other}/") for other in IMAGE_FOLDERS):
            yield pb.Mount(container_path=path, host_path=path, readonly=True)


class _Folders:
    """The volumes of the pod."""

    def __init__(
        self, runtime: Path, folder: Path, spec: Object, objects: tuple[Object, ...], port: int
    ) -> None:
        self._runtime = runtime
        self._folder = folder
        self._volumes = {volume["name"]: volume for volume in spec["volumes"]}
        self._config = the(objects, "ConfigMap")["data"]
        self._port = port

    def mounts(self, container: Object) -> Iterator[pb.Mount]:
        for mount in container["volumeMounts"]:
            yield pb.Mount(
                container_path=mount["mountPath"],
                host_path=self._place(self._volumes[mount["name"]]),
                readonly=mount.get("readOnly", False),
                recursive_read_only=False,  # needs a handler that says it can
            )

    def _place(self, volume: Object) -> str:
        if "hostPath" in volume:
            path = volume["hostPath"]["path"]
            if path in KERNEL_FOLDERS:
                return str(path)
            if path == NRI_FOLDER:  # where this runtime has its socket
                return str(self._runtime)
            place = self._runtime / "node" / path.lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            return str(place)
        place = self._folder / volume["name"]
        place.mkdir()
        if "configMap" in volume:
            settings = yaml.safe_load(self._config["config.yaml"])
            settings["metrics"] = {"listen": f"127.0.0.1:{self._port}"}
            settings["discovery"]["fake"] = {"file": "/etc/xpu-agent/fake.json"}
            (place / "fake.json").write_text(json.dumps({"devices": [CARD]}))
            (place / "config.yaml").write_text(yaml.safe_dump(settings))
        else:
            assert "emptyDir" in volume
            place.chmod(0o777)
        return str(place)


def _variables(container: Object, uid: str) -> dict[str, str]:
    fields = {"spec.nodeName": NODE, "metadata.uid": uid}
    return {
        one["name"]: one["value"]
        if "value" in one
        else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in container["env"]
    }


def _account(api: ApiServer, folder: Path) -> dict[str, str]:
    """Make the account's files as a kubelet does; return the variables about the API server."""
    shutil.copytree(api.serviceaccount_dir, folder / "account")
    for path in (folder / "account").iterdir():
        path.chmod(0o644)
    (folder / "account").chmod(0o755)
    where: Any = urlsplit(api.url)
    return {
        "KUBERNETES_SERVICE_HOST": str(where.hostname),
        "KUBERNETES_SERVICE_PORT": str(where.port),
    }


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
