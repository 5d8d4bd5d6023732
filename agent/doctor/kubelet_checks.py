"""Checks of the kubelet: process, health, pod-resources, policies, resources, other plug-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from agent.doctor.check import (
    RECORDED,
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    CheckStatus,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.doctor.facts import ABSENT, ANSWERS, HANGS, EndpointFacts

NO_KUBELET = "no kubelet is seen to run here"
MAX_LIST_CHARACTERS = 300  # characters of a list of devices
STRICT_POLICIES = ("restricted", "single-numa-node")


def check_kubelet_process(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether a kubelet runs on this machine."""
    if not facts.is_live:
        yield skip("kubelet-process", RECORDED)
    elif not facts.kubelet:
        yield skip("kubelet-process", f"{NO_KUBELET}, and there are no pods of one")
    elif facts.processes is None or facts.runs("kubelet") is not None:
        yield ok("kubelet-process", facts.kubelet)
    elif any(facts.runs(name) is not None for name in _EMBEDDED):
        yield ok("kubelet-process", "within another program (k3s, RKE2, k0s, MicroK8s)")
    else:
        yield fail(
            "kubelet-process",
            f"{facts.kubelet}, and no kubelet runs",
            impact="no pod starts or ends on this node, and the Node becomes NotReady",
            remedy="systemctl status kubelet; journalctl -u kubelet",
        )


_EMBEDDED = ("k3s-server", "k3s-agent", "k3s", "rke2", "k0s", "kubelite")


def check_kubelet_health(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kubelet's own health check answers."""
    endpoint = facts.kubelet_health
    if endpoint is None:
        yield skip("kubelet-health", RECORDED if not facts.is_live else NO_KUBELET)
    elif endpoint.state == ANSWERS:
        yield ok("kubelet-health", f"{endpoint.address} answers")
    elif endpoint.state == ABSENT:
        yield skip("kubelet-health", f"nobody listens at {endpoint.address}")
    else:
        yield warn(
            "kubelet-health",
            f"{endpoint.address}: {endpoint.detail or endpoint.state}",
            impact="the kubelet starts and ends pods late or not at all",
            remedy="journalctl -u kubelet; a runtime that hangs makes the kubelet unhealthy",
        )


def check_kubelet_answers(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the agent gets pods from the kubelet."""
    found = (facts.self_checks or {}).get("kubelet")
    if found is None:
        return
    is_well, message = found
    if is_well:
        yield ok("kubelet-pods", message)
    else:
        yield warn(
            "kubelet-pods",
            message,
            impact="while the API server is away pods are not known; settings of the kubelet are "
            "guessed",
            remedy="give the account nodes/pods and nodes/configz (kubelets before Kubernetes "
            "1.33: daemonset/components/kubelet-proxy), or set kubelet.address and kubelet.port",
        )


def check_pod_resources(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kubelet's pod-resources API answers."""
    yield from _socket_result(
        facts,
        "pod-resources",
        facts.pod_resources,
        impact="devices that the kubelet gave to pods are not known: exporters show no pods",
        remedy="restart the kubelet; in the agent's pod mount /var/lib/kubelet/pod-resources",
    )


def _socket_result(
    facts: CheckInputs, check: str, endpoint: EndpointFacts | None, *, impact: str, remedy: str
) -> Iterator[CheckResult]:
    if endpoint is None:
        yield skip(check, RECORDED if not facts.is_live else NO_KUBELET)
    elif endpoint.state == ANSWERS:
        yield ok(check, f"{endpoint.address} answers")
    elif endpoint.state == ABSENT and not facts.kubelet:
        yield skip(check, NO_KUBELET)
    else:
        words = "does not answer in time" if endpoint.state == HANGS else endpoint.state
        yield warn(
            check,
            f"{endpoint.address}: {endpoint.detail or words}",
            impact=impact,
            remedy=remedy,
        )


def check_plugin_folder(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kubelet's socket for device plug-ins is there, if the agent serves it."""
    if not facts.settings.device_plugin.vendors:
        yield skip("plugin-folder", "device_plugin.vendors is empty: nothing is served")
    elif facts.plugin_sockets is None:
        yield skip("plugin-folder", RECORDED if not facts.is_live else NO_KUBELET)
    elif "kubelet.sock" in facts.plugin_sockets:
        yield ok("plugin-folder", f"kubelet.sock and {len(facts.plugin_sockets) - 1} plug-ins")
    else:
        yield fail(
            "plugin-folder",
            "there is no kubelet.sock in the folder for device plug-ins",
            impact="no resource can be registered: pods that ask for devices are not admitted",
            remedy="set kubelet.root_dir to the kubelet's --root-dir, and mount its "
            "device-plugins; see whether the kubelet runs",
        )


def check_policies(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kubelet's policies admit what schedulers choose."""
    kubelet = facts.cluster_part("kubelet")
    if not kubelet:
        yield skip("kubelet-policies", "no agent has the kubelet's settings")
        return
    topology, cpus = kubelet.get("topology_policy"), kubelet.get("cpu_manager_policy")
    words = f"topology manager {topology or 'unknown'}, CPU manager {cpus or 'unknown'}"
    if topology in STRICT_POLICIES and facts.settings.device_plugin.vendors:
        yield warn(
            "kubelet-policies",
            words,
            impact="the kubelet refuses pods whose devices the scheduler chose from two NUMA "
            "nodes (TopologyAffinityError)",
            remedy="set topologyManagerPolicy: best-effort, or let the scheduler place by NUMA "
            "node (NodeResourceTopology)",
        )
    elif cpus == "static" and facts.settings.hooks.best_effort_cpus:
        yield warn(
            "kubelet-policies",
            words,
            impact="the kubelet's static CPU manager writes the CPUs of pods again, against "
            "hooks.best_effort_cpus",
            remedy="set cpuManagerPolicy: none, or hooks.best_effort_cpus: false",
        )
    else:
        yield ok("kubelet-policies", words)


def check_checkpoint(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the kubelet's checkpoints of CPUs and devices can be decoded."""
    paths = kubelet_checkpoints(facts.settings.kubelet.root_dir)
    texts = {path: facts.texts[path] for path in paths if path in facts.texts}
    if not texts:
        yield skip(
            "kubelet-checkpoints", "no checkpoint of a kubelet" if facts.is_live else RECORDED
        )
        return
    damaged = [path for path, text in texts.items() if not _is_json_object(text)]
    if damaged:
        yield fail(
            "kubelet-checkpoints",
            f"{join_names(damaged)} cannot be decoded",
            impact="the kubelet does not start, or forgets which pod has which device",
            remedy="drain the node, stop the kubelet, remove the file, and start it again",
        )
    else:
        yield ok("kubelet-checkpoints", join_names(list(texts)))


def kubelet_checkpoints(root_dir: str) -> tuple[str, ...]:
    """Return the paths of the checkpoints of a kubelet with this root folder."""
    root = root_dir.rstrip("/")
    return (
        f"{root}/cpu_manager_state",
        f"{root}/memory_manager_state",
        f"{root}/device-plugins/kubelet_internal_checkpoint",
    )


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def check_kubelet_resources(facts: CheckInputs) -> Iterator[CheckResult]:
    """Report the state of each resource at the kubelet."""
    served = facts.container_part("served")
    rows, exchanged = served.get("resources"), _device_exchanges(served.get("held"))
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        observation = f"{row.get('state')} {row.get('reason', '')} {row.get('message', '')}".strip()
        if pairs := exchanged.get(str(row.get("name"))):
            exchanges = ", ".join(
                f"{replacement} in place of {name}" for name, replacement in sorted(pairs)
            )
            observation = f"{observation}; exchanged: {exchanges[:MAX_LIST_CHARACTERS]}"
        if row.get("state") != "watched":
            yield CheckResult(
                id=f"kubelet:{row.get('name')}",
                status=CheckStatus.FAIL,
                observation=observation,
                impact="pods that ask for the resource are not admitted",
                remedy="see the message; the agent goes on trying",
            )
        elif withdrawn := row.get("withdrawn_ids"):
            ids = ", ".join(map(str, withdrawn)) if isinstance(withdrawn, list) else ""
            yield CheckResult(
                id=f"kubelet:{row.get('name')}",
                status=CheckStatus.WARN,
                observation=f"{observation}; withdrawn: {ids[:MAX_LIST_CHARACTERS]}",
                impact="pods have these devices and the kubelet does not know: it would give them "
                "to "
                "other pods",
                remedy="nothing: they come back when those pods end; to avoid it, let pods with a "
                "grant ask for the kubelet's resource, too, or offer it no devices that a "
                "scheduler grants",
            )
        else:
            yield CheckResult(
                id=f"kubelet:{row.get('name')}", status=CheckStatus.OK, observation=observation
            )


def _device_exchanges(allocation: object) -> Mapping[str, set[tuple[str, str]]]:
    """Return the devices that containers have instead of the kubelet's choice, by resource."""
    exchanges: dict[str, set[tuple[str, str]]] = {}
    for row in allocation if isinstance(allocation, list) else ():
        pairs = row.get("exchanges") if isinstance(row, Mapping) else None
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2:
                exchanges.setdefault(str(row["resource"]), set()).add((str(pair[0]), str(pair[1])))
    return exchanges


CHECKS = (
    Check(
        id="kubelet-process",
        group=CheckGroup.KUBELET,
        question="Does the kubelet run?",
        run=check_kubelet_process,
    ),
    Check(
        id="kubelet-health",
        group=CheckGroup.KUBELET,
        question="Does the kubelet's own health check answer?",
        run=check_kubelet_health,
    ),
    Check(
        id="kubelet-pods",
        group=CheckGroup.KUBELET,
        question="Does the agent get the kubelet's pods and settings?",
        run=check_kubelet_answers,
        absence="no agent answers, or kubelet.enabled is off",
    ),
    Check(
        id="pod-resources",
        group=CheckGroup.KUBELET,
        question="Does the kubelet's pod-resources API answer?",
        run=check_pod_resources,
    ),
    Check(
        id="plugin-folder",
        group=CheckGroup.KUBELET,
        question="Can device plug-ins register?",
        run=check_plugin_folder,
    ),
    Check(
        id="kubelet-resources",
        group=CheckGroup.KUBELET,
        question="Does the kubelet watch each resource that the agent serves?",
        run=check_kubelet_resources,
        absence="the agent serves none, or no agent answers",
    ),
    Check(
        id="kubelet-policies",
        group=CheckGroup.KUBELET,
        question="Do the kubelet's policies admit what schedulers choose?",
        run=check_policies,
    ),
    Check(
        id="kubelet-checkpoints",
        group=CheckGroup.KUBELET,
        question="Can the kubelet's checkpoints be decoded?",
        run=check_checkpoint,
    ),
)
