"""The chart makes of its values what kustomize makes of the base and its components."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import yaml

from agent.cli.parser import build_parser
from agent.version import VERSION
from plugins.scheduler.server.settings import SchedulerSettings
from tests.unit.daemonset.charts import (
    CHART,
    DEFAULTS,
    OFF_WITH_OBSERVE,
    SCHEMA,
    SWITCHES,
    chart_renderings,
    render,
    render_texts,
    value_errors,
)
from tests.unit.daemonset.go_template import Renderer, TemplateError
from tests.unit.daemonset.kubernetes_types import KubernetesTypes, installed_reader
from tests.unit.daemonset.manifests import COMPONENTS, DAEMONSET, Object, built, the
from tests.unit.daemonset.renderings import PROFILES, combined, profile
from tests.unit.daemonset.type_check import check_types

HOOK = "helm.sh/hook"
CONFIG_MAPS = ("xpu-agent", "xpu-scheduler-config")
# components that are values of another kind, or the profile itself
OTHER_WAYS = {
    *("enforce", "leave", "observe", "openshift-observe", "seccomp-observe", "without-policy"),
}


# settings of the scheduler: the component of kustomize that has their rights
SCHEDULER_RIGHTS: dict[str, tuple[dict[str, Any], str]] = {
    "node-resources": ({"publish_node_resources": True}, "scheduler-components/node-resources"),
    "load-scores": ({"load_score": {"enabled": True}}, "scheduler-components/load-scores"),
    "strict-ledger": ({"strict_ledger": True}, "scheduler/strict-ledger"),
    "vendor-annotations": ({"vendor_annotations": True}, "scheduler/vendor-annotations"),
}


def comparable(objects: Iterable[Object]) -> dict[tuple[str, str], Any]:
    """Return objects by kind and name, without what only one of the two ways of packaging has."""
    result = {}
    for item in objects:
        metadata = item["metadata"]
        if item["kind"] == "Namespace" or HOOK in metadata.get("annotations", {}):
            continue
        name, body = metadata["name"], {k: v for k, v in item.items() if k != "metadata"}
        if item["kind"] == "ConfigMap":  # kustomize adds a hash to the name, the chart to the pods
            name = next(one for one in CONFIG_MAPS if name.startswith(one))
            body["data"] = {key: yaml.safe_load(text) for key, text in item["data"].items()}
        if item["kind"] in ("DaemonSet", "Deployment"):
            body = {**body, "spec": comparable_workload(item["spec"])}
        result[item["kind"], name] = {"namespace": metadata.get("namespace"), **body}
    return result


def comparable_workload(spec: Object) -> Object:
    """Return the spec with lists as maps where Kubernetes takes them as such."""
    pod = dict(spec["template"]["spec"])
    (container,) = (dict(one) for one in pod["containers"])
    container["env"] = {one["name"]: one for one in container["env"]}
    container["volumeMounts"] = {
        one["mountPath"]: {"readOnly": False, **one} for one in container["volumeMounts"]
    }
    pod["containers"] = [container]
    pod["volumes"] = {one["name"]: one for one in pod["volumes"]}
    pod["volumes"]["config"] = "the ConfigMap"
    return {**spec, "template": {"labels": spec["template"]["metadata"]["labels"], "spec": pod}}


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_is_that_of_kustomize(name: str) -> None:
    assert comparable(render({"profile": name})) == comparable(profile(name))


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_is_the_component_of_kustomize(switch: str) -> None:
    component = (f"components/{SWITCHES[switch]}",)
    values: dict[str, Any] = {switch: {"enabled": True}}
    assert comparable(render(values)) == comparable(combined(("base",), component))


def test_all_switches_together_are_all_components_together() -> None:
    together = [one for one in SWITCHES if one != "nvidiaRuntime"]
    values: dict[str, Any] = {one: {"enabled": True} for one in together}
    components = ("components/enforce", *(f"components/{SWITCHES[one]}" for one in together))
    chart = comparable(render({"profile": "enforce", **values}))
    assert chart == comparable(combined(("base",), components))


def scheduler_objects(values: dict[str, Any]) -> list[Object]:
    rendered = render({"scheduler": {"enabled": True, **values}})
    return [
        item
        for item in rendered
        if item["metadata"]["labels"]["app.kubernetes.io/name"] == "xpu-scheduler"
    ]


def test_the_scheduler_is_that_of_kustomize() -> None:
    assert comparable(scheduler_objects({})) == comparable(combined(("scheduler",), ()))
    policy = ("scheduler-components/network-policy",)
    assert comparable(scheduler_objects({"networkPolicy": True})) == comparable(
        combined(("scheduler",), policy)
    )


@pytest.mark.parametrize("part", SCHEDULER_RIGHTS)
def test_a_setting_of_the_scheduler_comes_with_its_rights(part: str) -> None:
    settings, component = SCHEDULER_RIGHTS[part]
    chart = comparable(scheduler_objects({"settings": settings}))
    kustomize = comparable(combined(("scheduler",), (component,)))
    config = ("ConfigMap", "xpu-scheduler-config")
    written = chart.pop(config)["data"]["config.yaml"]
    before = kustomize.pop(config)["data"]["config.yaml"]
    assert written == {**before, **settings}
    assert msgspec.convert(written, SchedulerSettings)
    assert chart == kustomize


def test_the_scheduler_may_be_in_another_namespace() -> None:
    objects = scheduler_objects({"namespace": "scheduling"})
    assert "kube-system" not in yaml.safe_dump_all(objects)
    (config,) = (item for item in objects if item["kind"] == "ConfigMap")
    settings = yaml.safe_load(config["data"]["config.yaml"])
    assert settings["leader_election"]["namespace"] == "scheduling"


def test_without_the_policy_it_is_the_overlay_for_old_releases() -> None:
    values = {"policy": {"enabled": False}, "kubeletProxy": {"enabled": True}}
    assert comparable(render(values)) == comparable(built(DAEMONSET / "overlays/kubernetes-1.28"))


@pytest.mark.parametrize(
    ("switch", "component"),
    [("openshift", "openshift-observe"), ("seccompObserve", "seccomp-observe")],
)
def test_observe_has_constraints_and_a_seccomp_profile_of_its_own(
    switch: str, component: str
) -> None:
    values: dict[str, Any] = {"profile": "observe", switch: {"enabled": True}}
    components = ("components/observe", f"components/{component}")
    assert comparable(render(values)) == comparable(combined(("base",), components))


def test_every_component_is_a_value() -> None:
    assert {*SWITCHES.values()} | OTHER_WAYS == {*COMPONENTS}
    assert {*SWITCHES} <= {*DEFAULTS} <= {*SCHEMA["properties"]}


def test_another_namespace_and_name_are_those_of_every_object_and_mention() -> None:
    everything: dict[str, Any] = {one: {"enabled": True} for one in SWITCHES if one[0] != "n"}
    objects = render({"nameOverride": "cards", **everything}, namespace="accelerators")
    text = yaml.safe_dump_all(objects)
    assert "namespace: xpu-agent" not in text
    for item in objects:
        assert item["metadata"]["name"].startswith("cards"), item["metadata"]
        for subject in item.get("subjects", ()):
            assert subject["namespace"] == "accelerators"
            assert subject["name"].startswith("cards")


def test_one_value_moves_every_image() -> None:
    objects = render(
        {"image": {"registry": "registry.example.com"}, "scheduler": {"enabled": True}}
    )
    images = {
        container["image"]
        for item in objects
        for container in item.get("spec", {})
        .get("template", {})
        .get("spec", {})
        .get("containers", ())
    }
    names = ("xpu-agent", "xpu-scheduler")
    assert images == {f"registry.example.com/{name}:{VERSION}" for name in names}
    digest = "sha256:" + "0" * 64
    (agent,) = the(render({"image": {"digest": digest}}), "DaemonSet")["spec"]["template"]["spec"][
        "containers"
    ]
    assert agent["image"] == f"xpu-agent@{digest}"


def test_settings_are_put_over_those_of_the_chart_and_restart_the_agents() -> None:
    def settings_and_hash(values: dict[str, Any]) -> tuple[Any, str]:
        objects = render(values)
        annotations = the(objects, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
        return yaml.safe_load(the(objects, "ConfigMap")["data"]["config.yaml"]), annotations[
            "checksum/config"
        ]

    before, first = settings_and_hash({})
    after, second = settings_and_hash({"settings": {"log": {"level": "debug"}}, "port": 9326})
    assert after["log"] == {"level": "debug"}
    assert after["metrics"] == {**before["metrics"], "listen": "0.0.0.0:9326"}
    assert after["node"] == before["node"]
    assert first != second


def test_a_kubelet_with_another_folder_is_mounted_and_asked_there() -> None:
    folder = "/var/lib/k0s/kubelet"
    objects = render({"kubeletDir": folder})
    settings = yaml.safe_load(the(objects, "ConfigMap")["data"]["config.yaml"])
    assert settings["kubelet"] == {"root_dir": folder}
    daemon = yaml.safe_dump(the(objects, "DaemonSet"))
    assert "/var/lib/kubelet" not in daemon
    assert daemon.count(folder) == 4  # two mounts, two volumes


def test_before_the_release_is_removed_a_job_restores_every_node() -> None:
    objects = render({"restoreOnUninstall": {"timeoutSeconds": 60}})
    hooks = [item for item in objects if HOOK in item["metadata"].get("annotations", {})]
    assert [item["kind"] for item in hooks] == ["ServiceAccount", "Role", "RoleBinding", "Job"]
    for item in hooks:
        annotations = item["metadata"]["annotations"]
        assert annotations[HOOK] == "pre-delete"
        assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    account, role, binding, job = hooks
    weights = [int(h["metadata"]["annotations"].get("helm.sh/hook-weight", 0)) for h in hooks]
    assert max(weights[:3]) < weights[3], "the account is there before the Job"
    pod = job["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    arguments = build_parser(only_run=False).parse_args(pod["containers"][0]["args"])
    assert (arguments.command, arguments.timeout_s) == ("restore", 60)
    assert arguments.purge
    daemon = the(objects, "DaemonSet")["metadata"]
    assert arguments.all_nodes == f"{daemon['namespace']}/{daemon['name']}"
    assert role["rules"][0]["resourceNames"] == [daemon["name"]]
    # its pods are not those that the DaemonSet takes for its own
    selected = the(objects, "DaemonSet")["spec"]["selector"]["matchLabels"]
    assert not selected.items() <= job["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "values", [{"profile": "observe"}, {"restoreOnUninstall": {"enabled": False}}]
)
def test_what_writes_nothing_has_nothing_to_restore(values: dict[str, Any]) -> None:
    assert not [item for item in render(values) if item["kind"] == "Job"]


@pytest.mark.parametrize(
    "values",
    [
        {"profile": "everything"},
        {"profiles": "observe"},
        {"image": {"repo": "x"}},
        {"image": {"digest": "latest"}},
        {"port": 0},
        {"kubeletDir": "relative/kubelet"},
        {"port": "9316"},
        {"policy": {"enabled": "no"}},
        {"maxUnavailable": "many"},
        {"nameOverride": "Cards"},
        {"podMonitor": {"interval": "often"}},
        {"profile": "enforce", "nvidiaRuntime": {"enabled": True}},
        {"seccompObserve": {"enabled": True}},
        *({"profile": "observe", switch: {"enabled": True}} for switch in sorted(OFF_WITH_OBSERVE)),
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    assert value_errors(values)


def test_the_chart_is_of_this_version_and_describes_every_value() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    assert value_errors({}) == []
    assert "profile devices" in render_texts()["NOTES.txt"]


def test_its_files_are_those_of_kustomize() -> None:
    for name, source in (
        ("config.yaml", "base/config.yaml"),
        ("scheduler.yaml", "scheduler/config.yaml"),
        ("own-events.yaml", "policy/own-events.yaml"),
        ("own-objects.yaml", "policy/own-objects.yaml"),
    ):
        assert (CHART / "files" / name).resolve() == (DAEMONSET / source).resolve()


def test_every_rendering_has_the_types_of_kubernetes() -> None:
    types = KubernetesTypes(installed_reader())
    for name, objects in chart_renderings().items():
        assert list(check_types(types, objects)) == [], name


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a {{- 1 }} b {{ 2 -}} c", "a1 b 2c"),
        ("{{ if and .yes (not .no) }}x{{ else if .no }}y{{ else }}z{{ end }}", "x"),
        ('{{ if or .no (eq .word "w") }}x{{ end }}', "x"),
        ("{{ range .list }}<{{ . }}>{{ end }}", "<1><2>"),
        ('{{ $v := .word | default "d" }}{{ with .none }}{{ . }}{{ else }}{{ $v }}{{ end }}', "w"),
        ('{{ .none | default "d" | quote }}', '"d"'),
        ("x:{{ .map | toYaml | nindent 2 }}", "x:\n  a: 1"),
        ('{{ .no | ternary "y" "n" }}', "n"),
    ],
)
def test_templates_mean_what_they_mean_in_go(source: str, expected: str) -> None:
    root = {"yes": True, "no": False, "word": "w", "list": [1, 2], "map": {"a": 1}}
    assert Renderer({"t": source}).render("t", root) == expected


@pytest.mark.parametrize(
    "source",
    ["{{ if .a }}", "{{ end }}", "{{ lookup .a }}", "{{ $nothing }}", "{{ (.a }}", "{{ }}"],
)
def test_what_is_not_understood_is_an_error(source: str) -> None:
    with pytest.raises(TemplateError):
        Renderer({"t": source}).render("t", {"a": 1})
