"""What holds of every combination of the manifests: types, rights, privileges, images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.daemonset.kubernetes_types import KubernetesTypes, installed_reader, parse_model
from tests.unit.daemonset.manifests import Object
from tests.unit.daemonset.renderings import all_renderings, combined
from tests.unit.daemonset.type_check import FOREIGN, check_types

RENDERINGS = all_renderings()
TYPES = KubernetesTypes(installed_reader())
RESTORE = ["restore", "--purge"]
OTHERS_REGISTRY = "registry.example.com/mirror/xpu"


def containers(item: Object) -> Iterator[Object]:
    pod = item.get("spec", {}).get("template", {}).get("spec", {})
    yield from pod.get("initContainers", ())
    yield from pod.get("containers", ())


def rules(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    for item in objects:
        for rule in item.get("rules", ()) if item["kind"] in ("Role", "ClusterRole") else ():
            yield item["metadata"]["name"], rule


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_field_has_the_type_that_kubernetes_gives_it(name: str) -> None:
    assert list(check_types(TYPES, RENDERINGS[name])) == []


@pytest.mark.parametrize("name", RENDERINGS)
def test_only_the_agents_pod_of_two_profiles_is_privileged(name: str) -> None:
    privileged = {
        (item["kind"], item["metadata"]["name"])
        for item in RENDERINGS[name]
        for container in containers(item)
        if container.get("securityContext", {}).get("privileged")
    }
    unprivileged = name.startswith(("observe", "scheduler", "policy")) or name in (
        "devices+nvidia-runtime",
        "devices+observe",
    )
    assert privileged == (set() if unprivileged else {("DaemonSet", "xpu-agent")})


@pytest.mark.parametrize("name", RENDERINGS)
def test_no_right_has_a_wildcard_and_no_secret_is_read_or_shipped(name: str) -> None:
    assert not [item for item in RENDERINGS[name] if item["kind"] == "Secret"]
    for role, rule in rules(RENDERINGS[name]):
        words = {word for key in ("apiGroups", "resources", "verbs") for word in rule.get(key, ())}
        assert not [word for word in words if "*" in word], role
        assert "secrets" not in words, role
        assert rule.get("nonResourceURLs", ["/metrics"]) == ["/metrics"], role
        assert not words & {"impersonate", "escalate", "bind"}, role


@pytest.mark.parametrize("name", RENDERINGS)
def test_only_one_component_opens_the_kubelets_proxy(name: str) -> None:
    opens = any("nodes/proxy" in rule.get("resources", ()) for _, rule in rules(RENDERINGS[name]))
    assert opens == ("kubelet-proxy" in name or name == "kubernetes-1.28")


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_container_has_a_read_only_root_and_limited_memory_and_no_cpu_limit(
    name: str,
) -> None:
    for item in RENDERINGS[name]:
        for container in containers(item):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert set(container["resources"]["limits"]) == {"memory"}
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_binding_names_a_role_and_an_account_that_are_there(name: str) -> None:
    objects = RENDERINGS[name]
    there = {(item["kind"], item["metadata"]["name"]) for item in objects}
    for item in objects:
        if item["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = (item["roleRef"]["kind"], item["roleRef"]["name"])
        assert role in there or role[1].startswith("system:openshift:")
        for subject in item["subjects"]:
            assert (subject["kind"], subject["name"]) in there


@pytest.mark.parametrize("name", [name for name in RENDERINGS if "+leave" in name])
def test_the_init_container_that_restores_has_all_that_the_agent_has(name: str) -> None:
    (daemon,) = (item for item in RENDERINGS[name] if item["kind"] == "DaemonSet")
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


def test_all_kinds_of_other_projects_are_checked_by_their_fields() -> None:
    kinds = {item["kind"] for objects in RENDERINGS.values() for item in objects}
    assert set(FOREIGN) <= kinds


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
