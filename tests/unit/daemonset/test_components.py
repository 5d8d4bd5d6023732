"""What can be added to the base: components, the policy, the image."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from agent.cli.parser import build_parser
from agent.config.settings import Settings
from agent.config.sources import ENVIRONMENT_PREFIX, load_settings
from agent.version import VERSION
from agent.wire_formats.device_allocated import ANNOTATION
from daemonset.image.__main__ import LAYERS, PINNED
from tests.apiserver.access import AGENT
from tests.unit.daemonset.manifests import COMPONENTS, DAEMONSET, ROOT, Object, built, the
from tests.vendors import DESCRIPTIONS

APACHE_2_0 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
ANOTHER = {"namespace": "accelerators", "namePrefix": "prod-"}
MOVED = ("accelerators", "prod-xpu-agent")
PREFIX_OF_ACCOUNTS = "system:serviceaccount:"
# all that an overlay can have at once
TOGETHER = [
    one
    for one in COMPONENTS
    if one not in ("observe", "seccomp-observe", "without-policy", "leave")
]
INSTRUCTIONS = {
    *("ARG", "FROM", "LABEL", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"),
}


def overlay(
    folder: Path, resources: Iterable[str], components: Iterable[str] = (), **more: str
) -> tuple[Object, ...]:
    """Return the objects of an overlay over these folders of `daemonset/`."""
    root = folder.resolve()
    kustomization = {
        "resources": [os.path.relpath(DAEMONSET / part, root) for part in resources],
        "components": [os.path.relpath(DAEMONSET / "components" / c, root) for c in components],
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return built(folder)


def with_component(folder: Path, component: str) -> tuple[Object, ...]:
    """Return the base with one component."""
    return overlay(folder, ["base"], [component])


def accounts(objects: Iterable[Object]) -> Iterator[tuple[str, str, str]]:
    """Yield each place that names the agent's account: the object, the namespace, the name."""
    for item in objects:
        where = f"{item['kind']} {item['metadata']['name']}"
        for subject in item.get("subjects", ()):
            yield where, subject["namespace"], subject["name"]
        spec = item.get("spec", {})
        if (param := spec.get("paramRef")) is not None:
            yield where, param["namespace"], param["name"]
        if item["kind"] == "DaemonSet":
            pod = spec["template"]["spec"]
            yield where, item["metadata"]["namespace"], pod["serviceAccountName"]
        if item["kind"] == "ServiceAccount":
            yield where, item["metadata"]["namespace"], item["metadata"]["name"]


@pytest.mark.parametrize(
    ("changes", "namespace", "prefix", "suffix"),
    [
        ({}, "xpu-agent", "", ""),
        ({"namespace": "accelerators"}, "accelerators", "", ""),
        (ANOTHER, "accelerators", "prod-", ""),
        ({"namePrefix": "prod-", "nameSuffix": "-b"}, "xpu-agent", "prod-", "-b"),
    ],
)
def test_an_overlay_moves_every_mention_of_the_agents_account(
    tmp_path: Path, changes: dict[str, str], namespace: str, prefix: str, suffix: str
) -> None:
    objects = overlay(tmp_path, ["base"], TOGETHER, **changes)
    named = list(accounts(objects))
    kinds = Counter(where.split()[0] for where, _, _ in named)
    assert kinds == {
        "ClusterRoleBinding": 7,
        "RoleBinding": 2,
        "ValidatingAdmissionPolicyBinding": 2,
        "DaemonSet": 1,
        "ServiceAccount": 1,
    }
    expected = (namespace, f"{prefix}xpu-agent{suffix}")
    assert {where for where, *account in named if tuple(account) != expected} == set()
    # nor does any text inside an expression name an account of another overlay
    text = yaml.safe_dump_all(o for o in objects if o["kind"].startswith("Validating"))
    assert "serviceaccount:xpu" not in text.replace(" ", "").replace("'", "")
    names = {o["metadata"]["name"] for o in objects if o["kind"] == "ValidatingAdmissionPolicy"}
    bound = {o["spec"]["policyName"] for o in objects if o["kind"].endswith("PolicyBinding")}
    assert bound == names
    assert the(objects, "Namespace", namespace)


def test_the_policies_may_be_applied_from_an_overlay_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    agent = accounts(overlay(tmp_path / "base", ["base"], **ANOTHER))
    alone = accounts(overlay(tmp_path, ["policy"], **ANOTHER))
    assert {one[1:] for one in alone} == {one[1:] for one in agent} == {MOVED}


@pytest.mark.parametrize(
    ("component", "rights"),
    [
        ("node-condition", {("nodes", "get"), ("nodes/status", "patch")}),
        ("node-labels", {("nodes", "get"), ("nodes", "patch")}),
        ("kubelet-proxy", {("nodes/proxy", "get")}),
        ("evictions", {("pods/eviction", "create")}),
        ("block-io", {("persistentvolumeclaims", "get")}),
        ("metrics-auth", {("tokenreviews", "create"), ("subjectaccessreviews", "create")}),
    ],
)
def test_a_component_adds_its_rights_and_the_setting_that_uses_them(
    tmp_path: Path, component: str, rights: set[tuple[str, str]]
) -> None:
    objects = with_component(tmp_path, component)
    role = the(objects, "ClusterRole", f"xpu-agent-{component}")
    assert rights == {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    binding = the(objects, "ClusterRoleBinding", f"xpu-agent-{component}")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    base = settings_of(built(DAEMONSET / "base"))
    assert (settings_of(objects) != base) is (component != "kubelet-proxy")


def test_metrics_with_tokens_are_encrypted_and_probed_over_tls(tmp_path: Path) -> None:
    objects = with_component(tmp_path, "metrics-auth")
    pod = the(objects, "DaemonSet")["spec"]["template"]["spec"]
    (agent,) = pod["containers"]
    metrics = settings_of(objects).metrics
    assert metrics.auth.tokens
    (mount,) = (one for one in agent["volumeMounts"] if one["name"] == "metrics-tls")
    for path in (metrics.tls.cert_file, metrics.tls.key_file):
        assert os.path.dirname(path) == mount["mountPath"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "metrics-tls")
    assert volume["secret"]["defaultMode"] == 0o400
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert agent[probe]["httpGet"]["scheme"] == "HTTPS"
    (rule,) = the(objects, "ClusterRole", "xpu-agent-metrics-reader")["rules"]
    assert rule == {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}


def test_hami_core_has_its_folders_of_the_node_at_their_own_paths(tmp_path: Path) -> None:
    objects = with_component(tmp_path, "hami-core")
    pod = the(objects, "DaemonSet", "xpu-agent")["spec"]["template"]["spec"]
    volumes = {
        volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume
    }
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    for path in ("/usr/local/vgpu", "/tmp/vgpulock"):
        assert volumes[mounts[path]["name"]]["path"] == path
        assert not mounts[path].get("readOnly")


def test_the_pod_resources_proxy_has_a_folder_of_the_node_that_it_can_write(
    tmp_path: Path,
) -> None:
    objects = with_component(tmp_path, "pod-resources-proxy")
    kubelet = settings_of(objects).kubelet
    assert kubelet.pod_resources_proxy
    pod = the(objects, "DaemonSet")["spec"]["template"]["spec"]
    (mount,) = (
        mount
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["mountPath"] == kubelet.pod_resources_proxy_dir
    )
    assert not mount.get("readOnly")
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == mount["name"])
    assert volume["hostPath"]["path"] == kubelet.pod_resources_proxy_dir


def test_the_component_leave_restores_and_waits_without_a_probe(tmp_path: Path) -> None:
    before = the(built(DAEMONSET / "base"), "DaemonSet")["spec"]["template"]["spec"]
    after = the(with_component(tmp_path, "leave"), "DaemonSet")["spec"]["template"]["spec"]
    (agent,), (leaving,) = before["containers"], after["containers"]
    removed = agent.keys() - leaving.keys()
    assert removed == {"ports", "startupProbe", "livenessProbe", "readinessProbe"}
    assert after["volumes"] == before["volumes"]
    for container in (*after["initContainers"], leaving):
        parser = build_parser(only_run=False)
        parsed = parser.parse_args(container["args"])
        assert (parsed.command, parsed.purge) == ("restore", True)
        (cgroup,) = (
            mount for mount in container["volumeMounts"] if mount["mountPath"] == "/sys/fs/cgroup"
        )
        assert not cgroup["readOnly"]


def test_without_the_policy_nothing_else_is_left_out(tmp_path: Path) -> None:
    policies = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    without = with_component(tmp_path, "without-policy")
    assert list(without) == [
        item for item in built(DAEMONSET / "base") if item["kind"] not in policies
    ]


@pytest.mark.parametrize("component", ["ascend"])
def test_the_drivers_own_folders_are_mounted_read_only_at_their_own_paths(
    tmp_path: Path, component: str
) -> None:
    pod = the(with_component(tmp_path, component), "DaemonSet")["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    for path in ("/usr/local/Ascend", "/usr/local/dcmi"):
        assert mounts[path]["readOnly"]
        host = volumes[mounts[path]["name"]]["hostPath"]
        # a missing driver must not leave an empty folder behind that looks like one
        assert host == {"path": path, "type": "Directory"}


def test_block_io_can_write_its_files_with_the_default_profile(tmp_path: Path) -> None:
    pod = the(with_component(tmp_path, "block-io"), "DaemonSet")["spec"]["template"]["spec"]
    (mount,) = (
        mount
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["mountPath"] == "/sys/fs/cgroup"
    )
    assert not mount["readOnly"]


def settings_of(objects: tuple[Object, ...]) -> Settings:
    """Return the settings that the container's environment makes."""
    (container,) = the(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    own_values = {
        env["name"]: env["value"]
        for env in container["env"]
        if env["name"].startswith(ENVIRONMENT_PREFIX) and "value" in env
    }
    return load_settings(None, own_values, {}, DESCRIPTIONS).settings


def test_every_component_is_tested() -> None:
    assert sorted(COMPONENTS) == sorted(os.listdir(DAEMONSET / "components"))


@pytest.mark.parametrize("name", ["xpu-agent-own-objects", "xpu-agent-own-events"])
def test_a_policy_is_bound_and_is_about_the_agents_account(name: str) -> None:
    objects = built(DAEMONSET / "policy")
    policy = the(objects, "ValidatingAdmissionPolicy", name)
    binding = the(objects, "ValidatingAdmissionPolicyBinding", name)
    namespace, _, account = AGENT.removeprefix(PREFIX_OF_ACCOUNTS).partition(":")
    assert binding["spec"] == {
        "policyName": name,
        "validationActions": ["Deny"],
        "paramRef": {
            "name": account,
            "namespace": namespace,
            # without the account no agent can run, and other writers must not be kept out
            "parameterNotFoundAction": "Allow",
        },
    }
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["paramKind"] == {"apiVersion": "v1", "kind": "ServiceAccount"}
    (condition,) = policy["spec"]["matchConditions"]
    remaining, equal, right = condition["expression"].partition(" == ")
    assert (remaining, equal) == ("request.userInfo.username", " == ")
    parts = [part.strip() for part in right.split("+")]
    values = {
        "params.metadata.namespace": namespace,
        "params.metadata.name": account,
    }
    assert "".join(values.get(part, part.strip("'")) for part in parts) == AGENT


def test_the_policy_covers_every_right_to_write() -> None:
    covered = {
        (group, resource)
        for policy in built(DAEMONSET / "policy")
        if policy["kind"] == "ValidatingAdmissionPolicy"
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    written = {
        (group, resource)
        for rule in the(built(DAEMONSET / "base"), "ClusterRole")["rules"]
        if set(rule["verbs"]) - {"get", "list", "watch"}
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert written | {("", "nodes"), ("", "nodes/status")} == covered


def test_only_the_accounts_named_may_change_the_annotation_that_is_read_as_a_grant() -> None:
    objects = built(DAEMONSET / "policy/grants")
    spec = the(objects, "ValidatingAdmissionPolicy")["spec"]
    binding = the(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": "xpu-agent-grants", "validationActions": ["Deny"]}
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert {"pods", "pods/status", "pods/binding", "bindings"} <= set(rule["resources"])
    (condition,) = spec["matchConditions"]
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    for text in (condition["expression"], variables["before"], variables["after"]):
        assert set(re.findall(r"'([^']*/[^']*)'", text)) == {ANNOTATION}
    (only,) = spec["validations"]
    assert "request.userInfo.username in variables.accounts" in only["expression"]
    assert AGENT not in variables["accounts"]


def dockerfile() -> list[tuple[str, str]]:
    """Return the instructions with their words, continued lines joined."""
    text = (DAEMONSET / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, by its name."""
    parts: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for instruction, words in dockerfile():
        if instruction == "FROM":
            base, _, name = words.partition(" AS ")
            parts[name] = [("FROM", base)]
        elif name:
            parts[name].append((instruction, words))
    return parts


def test_the_images_are_built_of_what_is_in_the_tree() -> None:
    assert {name for name, _ in dockerfile()} == INSTRUCTIONS
    sent = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = set()
    for name, words in stages()["build"]:
        if name == "COPY":
            copied.update(words.split()[:-1])
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)


def test_the_base_is_pinned_and_the_images_have_nothing_of_it_but_their_layers() -> None:
    (default,) = (words for name, words in dockerfile() if name == "ARG" and "=" in words)
    argument, _, base = default.partition("=")
    assert PINNED.fullmatch(base)
    assert not base.partition("@")[0].endswith(":latest")
    assert base.count("/") == 0  # the registry is that of who builds
    parts = stages()
    assert list(parts) == ["build", "scheduler", "agent"]  # the last one is the default
    assert parts["build"][0] == ("FROM", f"${{{argument}}}")
    for target, layers in LAYERS.items():
        instructions = parts[target]
        assert instructions[0] == ("FROM", "scratch")
        copies = [words for name, words in instructions if name in ("COPY", "ADD", "RUN")]
        assert copies == [f"--from=build /image/{layer} /" for layer in layers]


def test_a_release_is_refused_without_a_pinned_base(tmp_path: Path) -> None:
    (assembly,) = (words for name, words in stages()["build"] if "daemonset.image" in words)
    assert '--release --base "$PYTHON_IMAGE"' in assembly
    for base in ("", "python:3.11-slim", "python@sha256:0"):
        command = [sys.executable, "-m", "daemonset.image", "--release", "--base", base]
        result = subprocess.run(
            [*command, "--out", str(tmp_path / "out")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        assert "is not pinned" in result.stderr
        assert not (tmp_path / "out").exists()


def test_the_images_have_locked_versions_only() -> None:
    installs = [words for name, words in dockerfile() if name == "RUN" and "pip install" in words]
    assert installs
    assert all("--require-hashes" in words for words in installs)


@pytest.mark.parametrize(
    ("target", "command", "user"),
    [("agent", "xpu-agent", "0:0"), ("scheduler", "xpu-scheduler", "65532:65532")],
)
def test_an_image_starts_the_command_that_is_installed(
    target: str, command: str, user: str
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    instructions = dict(stages()[target])
    assert yaml.safe_load(instructions["ENTRYPOINT"]) == [f"/usr/local/bin/{command}"]
    assert command in project["scripts"]
    assert instructions["USER"] == user
    assert instructions["ENV"].split() == ["PATH=/usr/local/bin", "MALLOC_ARENA_MAX=2"]


def test_the_licence_is_one_text_and_named_alike_everywhere() -> None:
    text = (ROOT / "LICENSE").read_bytes()
    # of https://www.apache.org/licenses/LICENSE-2.0.txt
    assert hashlib.sha256(text).hexdigest() == APACHE_2_0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license-files"] == ["LICENSE"]
    for target in LAYERS:
        named = dict(word.split("=", 1) for word in dict(stages()[target])["LABEL"].split())
        assert named["org.opencontainers.image.title"] == f"xpu-{target}"
        assert named["org.opencontainers.image.licenses"] == project["license"] == "Apache-2.0"
        assert named["org.opencontainers.image.version"] == VERSION == project["version"]
    copied = {word for name, words in dockerfile() if name == "COPY" for word in words.split()}
    assert "LICENSE" in copied
