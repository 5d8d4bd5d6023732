"""The Pod Security Standards of Kubernetes, as far as the manifests may touch them.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.unit.daemonset.manifests import Object

ALLOWED_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}


def baseline_violations(pod: Object) -> Iterator[str]:
    """Yield the controls of the level `baseline` that a pod's spec violates."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    if any("hostPath" in volume for volume in pod["volumes"]):
        yield "hostPath volumes"
    for container in _containers(pod):
        context = container.get("securityContext", {})
        if context.get("privileged"):
            yield "privileged"
        if set(context.get("capabilities", {}).get("add", ())) - ALLOWED_CAPABILITIES:
            yield "capabilities"
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield "host ports"


def restricted_violations(pod: Object) -> Iterator[str]:
    """Yield the controls that only the level `restricted` has and that a pod's spec violates."""
    own = pod.get("securityContext", {})
    for container in _containers(pod):
        context = {**own, **container.get("securityContext", {})}
        if context.get("allowPrivilegeEscalation", True):
            yield "privilege escalation"
        if not context.get("runAsNonRoot"):
            yield "running as non-root"
        if context.get("runAsUser") == 0:
            yield "non-root user"
        if "seccompProfile" not in context:
            yield "seccomp"
        capabilities = context.get("capabilities", {})
        added = set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}
        if "ALL" not in capabilities.get("drop", ()) or added:
            yield "dropped capabilities"
    kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
    if kinds - RESTRICTED_VOLUMES - {"hostPath"}:
        yield "volume types"


def _containers(pod: Object) -> Iterator[Object]:
    yield from pod.get("initContainers", ())
    yield from pod["containers"]
