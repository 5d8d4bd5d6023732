"""The manifests of the scheduling plug-in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from plugins.scheduler.server.settings import SchedulerSettings, scheduler_configuration
from tests.unit.daemonset.manifests import DAEMONSET, built, the

COMPONENTS = DAEMONSET / "scheduler-components"
OBJECTS = built(DAEMONSET / "scheduler")


def container() -> dict[str, Any]:
    deployment = the(OBJECTS, "Deployment", "xpu-scheduler")
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(one)


def test_the_replicas_need_no_privilege() -> None:
    pod = the(OBJECTS, "Deployment", "xpu-scheduler")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    context = container()["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert "hostNetwork" not in pod


def test_the_policy_for_grants_lets_the_replicas_write_them() -> None:
    account = the(OBJECTS, "ClusterRoleBinding", "xpu-scheduler")["subjects"][0]
    policy = the(built(DAEMONSET / "policy" / "grants"), "ValidatingAdmissionPolicy")["spec"]
    accounts = {variable["name"]: variable["expression"] for variable in policy["variables"]}[
        "accounts"
    ]
    name = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert f"'{name}'" in accounts


def test_the_settings_are_ones_that_the_command_takes() -> None:
    settings = the(OBJECTS, "ConfigMap", "xpu-scheduler")
    loaded = yaml.safe_load(settings["data"]["config.yaml"])
    read = msgspec.convert(loaded, SchedulerSettings)
    assert read.service == the(OBJECTS, "Service", "xpu-scheduler")["metadata"]["name"]
    assert read.listen.endswith(f":{container()['ports'][0]['containerPort']}")
    folders = {one["mountPath"] for one in container()["volumeMounts"]}
    assert read.tls.cert_file.rpartition("/")[0] in folders


def test_the_role_names_the_lease_and_the_addresses_that_the_replicas_write() -> None:
    settings = yaml.safe_load(the(OBJECTS, "ConfigMap", "xpu-scheduler")["data"]["config.yaml"])
    read = msgspec.convert(settings, SchedulerSettings)
    role = the(OBJECTS, "Role", "xpu-scheduler")
    names = {name for rule in role["rules"] for name in rule.get("resourceNames", ())}
    assert names == {read.service, read.leader_election.name}
    assert role["metadata"]["namespace"] == read.leader_election.namespace


def test_the_service_has_no_selector_because_the_leader_writes_its_endpoint() -> None:
    assert "selector" not in the(OBJECTS, "Service", "xpu-scheduler")["spec"]
    budget = the(OBJECTS, "PodDisruptionBudget", "xpu-scheduler")["spec"]
    deployment = the(OBJECTS, "Deployment", "xpu-scheduler")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    assert budget["minAvailable"] < deployment["replicas"]


def test_the_configuration_of_kube_scheduler_names_the_service() -> None:
    url = "https://xpu-scheduler.kube-system.svc:8443"
    (extender,) = yaml.safe_load(scheduler_configuration(url))["extenders"]
    service = the(OBJECTS, "Service", "xpu-scheduler")
    port = service["spec"]["ports"][0]["port"]
    metadata = service["metadata"]
    assert extender["urlPrefix"] == f"https://{metadata['name']}.{metadata['namespace']}.svc:{port}"
    assert extender["nodeCacheCapable"]
    assert not extender["ignorable"]


@pytest.mark.parametrize("name", sorted({*os.listdir(COMPONENTS)} - {"network-policy"}))
def test_a_component_adds_rights_of_the_account_and_nothing_else(name: str, tmp_path: Path) -> None:
    parts = {
        "resources": [os.path.relpath(DAEMONSET / "scheduler", tmp_path.resolve())],
        "components": [os.path.relpath(COMPONENTS / name, tmp_path.resolve())],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    objects = built(tmp_path)

    assert len(objects) == len(OBJECTS) + 2
    role = the(objects, "ClusterRole", f"xpu-scheduler-{name}")
    for rule in role["rules"]:
        assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
    binding = the(objects, "ClusterRoleBinding", f"xpu-scheduler-{name}")
    (account,) = binding["subjects"]
    own = the(objects, "ServiceAccount", "xpu-scheduler")["metadata"]
    assert (account["name"], account["namespace"]) == (own["name"], own["namespace"])


def test_every_right_is_of_a_few_verbs_and_no_secret_is_read() -> None:
    for kind in ("ClusterRole", "Role"):
        for rule in the(OBJECTS, kind, "xpu-scheduler")["rules"]:
            assert "*" not in (*rule["verbs"], *rule["resources"], *rule["apiGroups"])
            assert "secrets" not in rule["resources"]
