"""The profiles, and the table of them in docs/install.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.process.agent import EIGHT_CARDS, run_agent
from tests.unit.daemonset.manifests import COMPONENTS, DAEMONSET, ROOT, Object, the
from tests.unit.daemonset.pod_security import baseline_violations, restricted_violations
from tests.unit.daemonset.renderings import PROFILES, profile, rendering
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


def rights_of_the_agent(objects: tuple[Object, ...]) -> set[tuple[str, str]]:
    """Return resource and verb of each cluster-wide right that is bound to the agent's account."""
    bound = {item["roleRef"]["name"] for item in objects if item["kind"] == "ClusterRoleBinding"}
    return {
        (resource, verb)
        for item in objects
        if item["kind"] == "ClusterRole" and item["metadata"]["name"] in bound
        for rule in item["rules"]
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def test_the_documented_rights_are_those_of_the_profiles_and_components() -> None:
    documented: dict[str, set[tuple[str, str]]] = {}
    for row in read_table(INSTALL, "rights"):
        rights = {
            (resource.strip("` "), verb.strip())
            for resource in row["Resources"].split(",")
            for verb in row["Verbs"].split(",")
        }
        documented.setdefault(row["From"], set()).update(rights)
    base = rights_of_the_agent(profile("devices"))
    assert (
        rights_of_the_agent(profile("observe")) == rights_of_the_agent(profile("enforce")) == base
    )
    real = {"all profiles": base}
    for name in filter(adds_rights, COMPONENTS):
        real[f"`{name}`"] = rights_of_the_agent(rendering(f"devices+{name}")) - base
    assert documented == real


def adds_rights(component: str) -> bool:
    """Return whether a component is one over the base that has rights of its own."""
    folder = DAEMONSET / "components" / component
    return (folder / "rbac.yaml").exists() and not component.startswith("openshift")


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


def cards_seen(host: Path) -> dict[str, str]:
    """Return the rows of the table about cards, from the Device object of a recorded host."""
    outcome = run_agent("render", "device", "--host", str(host))
    assert outcome.returncode == 0, outcome.stderr
    device = yaml.safe_load(outcome.stdout)
    card = device["spec"]["devices"][0]
    places = json.loads(device["metadata"]["annotations"]["xpu-agent.io/topology"])
    health = json.loads(device["metadata"]["annotations"]["xpu-agent.io/health"])
    return {
        "UUID and number": word(card["id"].startswith("GPU-") and "minor" in card),
        "model": word("node.koordinator.sh/gpu-model" in device["metadata"]["labels"]),
        "NUMA node, PCIe switch, root complex": word(
            card["topology"]["busID"] in places["devices"]
        ),
        "memory, and resources that pods can request": word(card.get("resources")),
        "links between cards": word(places.get("links")),
        "health": word(health[card["topology"]["busID"]]["state"] != "suspect"),
    }


def test_without_its_driver_a_card_has_a_place_and_no_resources(tmp_path: Path) -> None:
    shutil.copytree(
        EIGHT_CARDS, tmp_path / "host", symlinks=True, ignore=shutil.ignore_patterns("tapes")
    )
    documented = read_table(INSTALL, "cards")
    for name, host in (("observe", tmp_path / "host"), ("devices", EIGHT_CARDS)):
        assert cards_seen(host) == {row["What"]: row[f"`{name}`"] for row in documented}
