"""What holds of every combination of the manifests: types, rights, privileges, images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.daemonset.kubernetes_types import KubernetesTypes, installed_reader, parse_model
from tests.unit.daemonset.manifests import Object
from tests.unit.daemonset.renderings import combined, rendering, rendering_names
from tests.unit.daemonset.type_check import check_types

TYPES = KubernetesTypes(installed_reader())
RESTORE = ["restore", "--purge"]
OTHERS_REGISTRY = "registry.example.com/mirror/xpu"
NO_RIGHTS = {"impersonate", "escalate", "bind", "secrets"}
OPENS_PROXY = ("kubernetes-1.28", "devices+kubelet-proxy")
UNPRIVILEGED = ("devices+nvidia-runtime", "devices+observe", "observe", "observe+seccomp-observe")

Problems = Iterator[str]


def containers(item: Object) -> Iterator[Object]:
    pod = item.get("spec", {}).get("template", {}).get("spec", {})
    yield from pod.get("initContainers", ())
    yield from pod.get("containers", ())


def rules(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    for item in objects:
        for rule in item.get("rules", ()) if item["kind"] in ("Role", "ClusterRole") else ():
            yield item["metadata"]["name"], rule


def wrong_privileges(name: str, objects: tuple[Object, ...]) -> Problems:
    """Yield privileged containers besides the agent's own, in profiles that are privileged."""
    for item in objects:
        for container in containers(item):
            if not container.get("securityContext", {}).get("privileged"):
                continue
            own = (item["kind"], item["metadata"]["name"]) == ("DaemonSet", "xpu-agent")
            if not own or name in UNPRIVILEGED:
                yield f"{item['metadata']['name']}/{container['name']} is privileged"


def wrong_rights(name: str, objects: tuple[Object, ...]) -> Problems:
    """Yield wildcards, Secrets, and the kubelet's proxy where no component asks for it."""
    yield from (f"ships {item['kind']}" for item in objects if item["kind"] == "Secret")
    opens = False
    for role, rule in rules(objects):
        words = {word for key in ("apiGroups", "resources", "verbs") for word in rule.get(key, ())}
        yield from (f"{role}: {word}" for word in words if "*" in word or word in NO_RIGHTS)
        yield from (
            f"{role}: {url}" for url in rule.get("nonResourceURLs", ()) if url != "/metrics"
        )
        opens = opens or "nodes/proxy" in words
    if opens != (name in OPENS_PROXY):
        yield f"nodes/proxy is {'open' if opens else 'closed'}"


def wrong_containers(objects: tuple[Object, ...]) -> Problems:
    """Yield containers with a writable root, or with other limits than memory alone."""
    for item in objects:
        for container in containers(item):
            where = f"{item['metadata']['name']}/{container['name']}"
            if container["securityContext"].get("readOnlyRootFilesystem") is not True:
                yield f"{where}: the root file system is writable"
            if set(container["resources"].get("limits", ())) != {"memory"}:
                yield f"{where}: limits"
            if set(container["resources"].get("requests", ())) != {"cpu", "memory"}:
                yield f"{where}: requests"
            if container.get("terminationMessagePolicy") != "FallbackToLogsOnError":
                yield f"{where}: the reason of its end is not in the pod's status"


def wrong_bindings(objects: tuple[Object, ...]) -> Problems:
    """Yield bindings of roles or accounts that are not there."""
    there = {(item["kind"], item["metadata"]["name"]) for item in objects}
    for item in objects:
        if item["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = (item["roleRef"]["kind"], item["roleRef"]["name"])
        if role not in there and not role[1].startswith("system:openshift:"):
            yield f"no {role}"
        for subject in item["subjects"]:
            if (subject["kind"], subject["name"]) not in there:
                yield f"no {subject}"


@pytest.mark.parametrize("name", tuple(rendering_names()))
def test_every_rendering_is_valid_and_has_no_more_than_it_needs(name: str) -> None:
    objects = rendering(name)
    assert list(check_types(TYPES, objects)) == []
    assert list(wrong_privileges(name, objects)) == []
    assert list(wrong_rights(name, objects)) == []
    assert list(wrong_containers(objects)) == []
    assert list(wrong_bindings(objects)) == []


def test_each_of_these_rules_would_be_broken_by_a_bad_manifest() -> None:
    role = {"kind": "ClusterRole", "metadata": {"name": "r"}}
    for rule, problem in (
        ({"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}, "r: *"),
        ({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}, "r: secrets"),
        ({"nonResourceURLs": ["/logs"], "verbs": ["get"]}, "r: /logs"),
        (
            {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]},
            "nodes/proxy is open",
        ),
    ):
        assert list(wrong_rights("devices", ({**role, "rules": [rule]},))) == [problem]
    assert list(wrong_rights("kubernetes-1.28", ())) == ["nodes/proxy is closed"]
    container = {"name": "c", "securityContext": {"privileged": True}, "resources": {}}
    pod = {"template": {"spec": {"containers": [container]}}}
    other: Object = {"kind": "Deployment", "metadata": {"name": "other"}, "spec": pod}
    assert list(wrong_privileges("enforce", (other,))) == ["other/c is privileged"]
    own: Object = {"kind": "DaemonSet", "metadata": {"name": "xpu-agent"}, "spec": pod}
    assert list(wrong_privileges("observe", (own,))) == ["xpu-agent/c is privileged"]
    assert len(list(wrong_containers((other,)))) == 4
    binding: Object = {
        "kind": "RoleBinding",
        "metadata": {"name": "b"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "s"}],
    }
    assert len(list(wrong_bindings((binding,)))) == 2


def test_the_init_container_that_restores_has_all_that_the_agent_has() -> None:
    (daemon,) = (item for item in rendering("devices+leave") if item["kind"] == "DaemonSet")
    pod = daemon["spec"]["template"]["spec"]
    (restoring,), (waiting,) = pod["initContainers"], pod["containers"]
    for key in ("env", "volumeMounts", "securityContext", "resources", "image"):
        assert restoring[key] == waiting[key]
    assert (restoring["args"], waiting["args"]) == (RESTORE, [*RESTORE, "--stay"])


@pytest.mark.parametrize(
    ("resources", "components"),
    [
        (("base", "scheduler"), ()),
        (("base",), ("components/leave",)),
        (("overlays/observe",), ()),
        (("overlays/kubernetes-1.28",), ()),
    ],
)
def test_one_line_of_an_overlay_moves_an_image_everywhere(
    resources: tuple[str, ...], components: tuple[str, ...]
) -> None:
    lines = (f"xpu-agent={OTHERS_REGISTRY}", f"xpu-scheduler={OTHERS_REGISTRY}")
    moved = combined(resources, components, lines)
    images = {one["image"].rpartition(":")[0] for item in moved for one in containers(item)}
    assert images == {OTHERS_REGISTRY}


def test_misspelt_missing_and_wrongly_typed_fields_would_be_reported() -> None:
    wrong: Object = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "spec": {
            "template": {"spec": {"containers": [{"volumemounts": []}], "hostPID": "yes"}},
            "minReadySeconds": "5",
        },
    }
    assert sorted(TYPES.problems(wrong)) == [
        "DaemonSet.spec.minReadySeconds: '5' is no int",
        "DaemonSet.spec.selector: missing",
        "DaemonSet.spec.template.spec.containers[0].name: missing",
        "DaemonSet.spec.template.spec.containers[0].volumemounts: unknown field",
        "DaemonSet.spec.template.spec.hostPID: 'yes' is no bool",
    ]
    for api in ("apps/v9", "batch/v1", "v1"):
        absent: Object = {"apiVersion": api, "kind": "DaemonSet"}
        assert list(TYPES.problems(absent)) == [f"{api} DaemonSet: this release does not have it"]


def test_required_fields_of_older_clients_are_in_their_setters() -> None:
    source = """
class V1Thing(object):
    openapi_types = {"a_b": "str", "c": "list[str]"}
    attribute_map = {"a_b": "aB", "c": "c"}

    def a_b(self, value):
        raise ValueError("Invalid value for `a_b`, must not be `None`")
"""
    model = parse_model(source)
    assert model.fields == {"aB": "str", "c": "list[str]"}
    assert model.required == {"aB"}
