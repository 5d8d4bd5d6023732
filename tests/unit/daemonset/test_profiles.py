"""The profiles, and the table of them in docs/install.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.daemonset.manifests import ROOT, Object, the
from tests.unit.daemonset.pod_security import baseline_violations, restricted_violations
from tests.unit.daemonset.renderings import PROFILES, profile
from tests.unit.daemonset.tables import read_table

INSTALL = ROOT / "docs" / "install.md"
TABLE = read_table(INSTALL, "profiles")


def pod_of(name: str) -> Object:
    return dict(the(profile(name), "DaemonSet")["spec"]["template"]["spec"])


def word(is_so: object) -> str:
    return "yes" if is_so else "no"


def security(name: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table about privileges."""
    pod = pod_of(name)
    (container,) = pod["containers"]
    context = {**pod.get("securityContext", {}), **container["securityContext"]}
    privileged = context.get("privileged", False)
    yield "privileged", word(privileged)
    yield "user", str(context["runAsUser"])
    dropped = context.get("capabilities", {}).get("drop") == ["ALL"]
    yield "capabilities", "none" if dropped and not privileged else "all"
    yield "privilege escalation", word(context.get("allowPrivilegeEscalation", True))
    yield "seccomp profile", context.get("seccompProfile", {}).get("type", "none")
    yield "read-only root file system", word(context["readOnlyRootFilesystem"])
    yield "hostNetwork", word(pod.get("hostNetwork"))
    yield "hostPID", word(pod.get("hostPID"))
    yield "Pod Security, below `baseline`", ", ".join(sorted(set(baseline_violations(pod))))
    yield "Pod Security, below `restricted`", ", ".join(sorted(set(restricted_violations(pod))))


def mounts(name: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table about folders of the node."""
    pod = pod_of(name)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in pod["containers"][0]["volumeMounts"]:
        volume = volumes[mount["name"]]
        path = mount["mountPath"]
        if "hostPath" in volume:
            host = volume["hostPath"]["path"]
            label = f"`{host}`" if host == path else f"`{host}` at `{path}`"
            yield label, "read" if mount.get("readOnly") else "write"
        elif path in ("/run/xpu-agent", "/var/lib/xpu-agent"):
            memory = volume["emptyDir"].get("medium") == "Memory"
            yield f"`{path}`", "in memory" if memory else "lost with the pod"


@pytest.mark.parametrize("name", PROFILES)
def test_the_documented_table_is_what_the_manifests_say(name: str) -> None:
    real = {**dict(mounts(name)), **dict(security(name))}
    documented = {row[""]: row[f"`{name}`"] for row in TABLE}
    assert {key: value for key, value in documented.items() if value != "no" or key in real} == real


def test_observe_can_write_nothing_on_the_node_and_see_no_other_process() -> None:
    pod = pod_of("observe")
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    of_the_node = [m for m in container["volumeMounts"] if "hostPath" in volumes[m["name"]]]
    assert of_the_node
    assert all(mount["readOnly"] for mount in of_the_node)
    # what is mounted below them is read-only as well, which excludes propagation
    assert all(mount["recursiveReadOnly"] == "IfPossible" for mount in of_the_node)
    assert not any("mountPropagation" in mount for mount in of_the_node)
    assert not pod["hostPID"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_each_profile_may_write_more_of_the_node_than_the_one_before() -> None:
    written = [{path for path, access in mounts(name) if access == "write"} for name in PROFILES]
    assert written[0] == set()
    assert written[0] < written[1] < written[2]
    assert written[2] - written[1] == {"`/sys/fs/cgroup`"}
