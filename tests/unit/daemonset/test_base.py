"""`daemonset/base`: one piece, in step with the settings, no more rights than it says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from agent.app.identity import NODE_ROOT
from agent.config.address import parse_listen_address
from agent.config.sources import DEFAULT_FILE, ENVIRONMENT_PREFIX, load_settings
from agent.version import VERSION
from tests.unit.daemonset.manifests import DAEMONSET, Object, built, the
from tests.vendors import DESCRIPTIONS, decode

BASE = built(DAEMONSET / "base")
NAMESPACED = ("ServiceAccount", "ConfigMap", "DaemonSet")


@pytest.fixture
def daemon() -> Object:
    return the(BASE, "DaemonSet")


@pytest.fixture
def container(daemon: Object) -> Object:
    (only,) = daemon["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.fixture
def settings() -> Any:
    return decode(yaml.safe_load(the(BASE, "ConfigMap")["data"]["config.yaml"]))


def mounts(container: Object) -> dict[str, Object]:
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def test_everything_is_in_one_namespace_and_carries_one_name() -> None:
    for item in BASE:
        assert item["metadata"]["labels"]["app.kubernetes.io/name"] == "xpu-agent"
        namespace = item["metadata"].get("namespace")
        assert namespace == ("xpu-agent" if item["kind"] in NAMESPACED else None), item
    assert sorted({item["kind"] for item in BASE}) == [
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "DaemonSet",
        "Namespace",
        "ServiceAccount",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]


def test_the_rights_are_those_of_the_account_that_the_pods_have(daemon: Object) -> None:
    binding = the(BASE, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == the(BASE, "ClusterRole")["metadata"]["name"]
    (subject,) = binding["subjects"]
    account = the(BASE, "ServiceAccount")["metadata"]
    assert (subject["namespace"], subject["name"]) == (account["namespace"], account["name"])
    assert daemon["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]


def test_the_pods_are_found_by_their_labels(daemon: Object) -> None:
    selected = daemon["spec"]["selector"]["matchLabels"]
    assert selected.items() <= daemon["spec"]["template"]["metadata"]["labels"].items()


def test_every_key_of_the_settings_exists(settings: Any) -> None:
    assert settings.node.run_dir == "/run/xpu-agent"


def test_every_setting_in_the_environment_exists(container: Object) -> None:
    own_values = {
        env["name"]: env.get("value", "node-a")
        for env in container["env"]
        if env["name"].startswith(ENVIRONMENT_PREFIX)
    }
    assert load_settings(None, own_values, {}, DESCRIPTIONS).settings.node.name == "node-a"
    (name,) = (env for env in container["env"] if env["name"] in own_values and "value" not in env)
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert {"name": "MALLOC_ARENA_MAX", "value": "2"} in container["env"]


def test_the_settings_are_mounted_where_the_agent_reads_them(
    daemon: Object, container: Object
) -> None:
    mount = mounts(container)[str(DEFAULT_FILE.parent)]
    volumes = {volume["name"]: volume for volume in daemon["spec"]["template"]["spec"]["volumes"]}
    config = the(BASE, "ConfigMap")
    assert volumes[mount["name"]]["configMap"]["name"] == config["metadata"]["name"]
    assert list(config["data"]) == [DEFAULT_FILE.name]


def test_the_probes_use_the_address_of_the_agent(container: Object, settings: Any) -> None:
    address = parse_listen_address(settings.metrics.listen)
    (port,) = container["ports"]
    assert port["containerPort"] == address.port == 9316
    assert address.host == "0.0.0.0", "the kubelet asks the node's address"
    probes = {
        name: container[name]["httpGet"]
        for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/livez", "/livez", "/readyz"]


def test_the_page_for_people_is_for_this_node_only(settings: Any) -> None:
    assert settings.metrics.page_listen == "127.0.0.1:9317"


def test_each_mount_has_its_volume_and_each_volume_its_mount(
    daemon: Object, container: Object
) -> None:
    volumes = [volume["name"] for volume in daemon["spec"]["template"]["spec"]["volumes"]]
    assert sorted(volumes) == sorted(mount["name"] for mount in container["volumeMounts"])


def test_of_the_node_only_what_the_agent_is_for_can_be_written(
    daemon: Object, container: Object
) -> None:
    volumes = {volume["name"]: volume for volume in daemon["spec"]["template"]["spec"]["volumes"]}
    writable = {
        volumes[mount["name"]]["hostPath"]["path"]
        for mount in container["volumeMounts"]
        if "hostPath" in volumes[mount["name"]] and not mount.get("readOnly")
    }
    assert writable == {
        *("/run/xpu-agent", "/var/lib/xpu-agent"),  # its own
        "/dev",  # a privileged container opens device nodes that come later
        *("/var/run/nri", "/var/lib/kubelet/device-plugins"),  # sockets: to the runtime, to us
        "/var/run/cdi",
    }
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_what_is_written_goes_where_the_node_keeps_it(container: Object, settings: Any) -> None:
    result = mounts(container)
    assert settings.node.run_dir in result
    assert settings.node.state_dir in result
    assert settings.admin.socket.startswith(settings.node.run_dir + "/")


def test_the_nodes_files_are_where_the_settings_and_the_identity_look(
    container: Object, settings: Any
) -> None:
    assert NODE_ROOT in mounts(container)
    discovery = settings.discovery
    checks = (
        *discovery.nvidia.library_dirs,
        *discovery.ascend.library_dirs,
        discovery.ascend.driver_root,
        discovery.cambricon.driver_root,
        discovery.topology_file,
        settings.collect.hami_regions,
    )
    assert {path.split("/")[1] for path in checks} == {NODE_ROOT.strip("/")}
    assert settings.kubelet.root_dir in mounts(container)


def test_the_pod_sees_the_host_and_outlives_pressure(daemon: Object) -> None:
    pod = daemon["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["hostPID"]) == (True, True)
    assert "hostIPC" not in pod
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["terminationGracePeriodSeconds"] == 15
    assert daemon["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "20%"}


def test_memory_is_limited_and_cpu_is_not(container: Object) -> None:
    assert container["resources"]["limits"] == {"memory": "256Mi"}
    assert container["resources"]["requests"]["cpu"] == "50m"


def test_the_image_is_of_this_version(container: Object) -> None:
    assert container["image"] == f"xpu-agent:{VERSION}"


def test_nobody_may_evict_write_nodes_or_read_secrets() -> None:
    rules = the(BASE, "ClusterRole")["rules"]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert "*" not in {word for rule in rules for words in rule.values() for word in words}
    assert not resources & {"pods/eviction", "nodes/proxy", "nodes/status", "secrets", "configmaps"}
    for rule in rules:
        if {"nodes", "pods"} & set(rule["resources"]):
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
