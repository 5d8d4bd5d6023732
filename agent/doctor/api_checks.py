"""Checks of the API server: reached, rights, CRDs, the Node, its objects and their writers."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.doctor.check import (
    Check,
    CheckGroup,
    CheckInputs,
    CheckResult,
    fail,
    join_names,
    ok,
    skip,
    warn,
)
from agent.doctor.facts import ApiReply
from agent.doctor.rights import (
    BASE_RIGHTS,
    EXCESS_RIGHTS,
    KUBELET_PROXY,
    SCHEDULING,
    SLO,
    TOPOLOGY,
    Right,
    enabled_components,
)
from agent.kube.api import FIELD_MANAGER

OLDEST_MINOR, NEWEST_MINOR = 28, 36  # of Kubernetes 1
LATE_REPORTS = 3  # intervals without a report
_MINOR = re.compile(r"v?1\.([0-9]{1,3})")


class ObjectKind(msgspec.Struct, frozen=True):
    """A kind of object that the agent reads or writes; any of the versions will do."""

    kind: str
    versions: tuple[str, ...]  # with the group
    plural: str
    loss: str  # without it


OBJECT_KINDS = (
    ObjectKind("Device", (f"{SCHEDULING}/v1alpha1",), "devices", "no device is published"),
    ObjectKind("NodeMetric", (f"{SLO}/v1alpha1",), "nodemetrics", "no usage is reported"),
    ObjectKind("NodeSLO", (f"{SLO}/v1alpha1",), "nodeslos", "no strategy can be requested"),
    ObjectKind(
        "NodeResourceTopology",
        (f"{TOPOLOGY}/v1alpha2", f"{TOPOLOGY}/v1alpha1"),
        "noderesourcetopologies",
        "no topology is published",
    ),
)
_SETTINGS_OF_KINDS = {
    "Device": "publish.device",
    "NodeMetric": "publish.node_metric",
    "NodeResourceTopology": "publish.node_resource_topology",
}


def _why_no_reply(facts: CheckInputs, name: str) -> str:
    """Return why there is no usable reply; empty if there is one."""
    if facts.api.absence:
        return facts.api.absence
    if facts.api.problem:
        return f"the API server cannot be asked: {facts.api.problem}"
    reply = facts.api.replies.get(name)
    if reply is None:
        return "the API server did not answer in time"
    return reply.problem


def _path(document: object, *keys: str) -> object:
    """Return a member of nested objects; `None` if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _text(document: object, *keys: str) -> str:
    value = _path(document, *keys)
    return value if isinstance(value, str) else ""


def _first_item(reply: ApiReply) -> Mapping[str, object] | None:
    """Return the first object of a list."""
    items = reply.document.get("items")
    first = items[0] if isinstance(items, list) and items else None
    return first if isinstance(first, Mapping) else None


def _age_s(facts: CheckInputs, time: str) -> float | None:
    """Return the age of a time of the API server, by its clock."""
    try:
        then = dt.datetime.fromisoformat(time)
    except ValueError:
        return None
    if then.tzinfo is None:
        return None
    return facts.api.wall_s + (facts.api.clock_skew_s or 0.0) - then.timestamp()


def check_api_server(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the API server answers."""
    if facts.api.absence:
        yield skip("api-server", facts.api.absence)
    elif facts.api.problem:
        yield fail(
            "api-server",
            facts.api.problem,
            impact="nothing is published, and pods are known from the kubelet alone",
            remedy="check the network path, the certificate authority and the account of "
            f"{facts.api.target}",
        )
    else:
        yield ok("api-server", f"{facts.api.target} answers")


def check_api_version(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the agent is tested with this version of Kubernetes."""
    if reason := _why_no_reply(facts, "version"):
        yield skip("api-version", reason)
        return
    version = _text(facts.api.replies["version"].body, "gitVersion")
    minor = _MINOR.match(version)
    if minor is None:
        yield skip("api-version", f"{version or 'no version'} is no version of Kubernetes 1")
    elif OLDEST_MINOR <= int(minor[1]) <= NEWEST_MINOR:
        yield ok("api-version", version)
    else:
        yield warn(
            "api-version",
            f"{version}: the agent is tested with 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}",
            impact="admission policies of the manifests may be missing, or a request refused",
            remedy="use a version of the agent that is tested with this cluster",
        )


def check_crds(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the API server has the kinds that the agent reads and writes."""
    if facts.api.absence or facts.api.problem:
        yield skip("crds", _why_no_reply(facts, ""))
        return
    well = []
    for one in OBJECT_KINDS:
        check = f"crds:{one.kind}"
        reasons = [_why_no_reply(facts, version) for version in one.versions]
        replies = [facts.api.replies.get(version) for version in one.versions]
        if any(reply is not None and one.plural in _resource_names(reply) for reply in replies):
            well.append(one.kind)
        elif any(
            reason and (reply is None or reply.code != 404)
            for reason, reply in zip(reasons, replies, strict=True)
        ):
            yield skip(check, next(filter(None, reasons)))
        elif not _is_published(facts, one.kind):
            yield skip(check, f"absent, and {_SETTINGS_OF_KINDS[one.kind]} is off")
        else:
            is_topology = one.versions[0].startswith(TOPOLOGY)
            project = "noderesourcetopology-api" if is_topology else "Koordinator"
            yield warn(
                check,
                f"the API server does not have {one.plural} in {' or '.join(one.versions)}",
                impact=one.loss,
                remedy=f"install the CRD of {project}",
            )
    if len(well) == len(OBJECT_KINDS):
        yield ok("crds", join_names(well))


def _resource_names(reply: ApiReply) -> set[str]:
    """Return the names of the resources of one version of a group."""
    resources = reply.document.get("resources")
    return {_text(one, "name") for one in resources} if isinstance(resources, list) else set()


def _is_published(facts: CheckInputs, kind: str) -> bool:
    publish = facts.settings.publish
    return {
        "Device": publish.device,
        "NodeMetric": publish.node_metric,
        "NodeResourceTopology": publish.node_resource_topology,
    }.get(kind, True)


def check_crd_fields(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether kinds have the subresource status that the agent writes."""
    version = f"{SLO}/v1alpha1"
    if reason := _why_no_reply(facts, version):
        yield skip("crd-status", reason)
        return
    names = _resource_names(facts.api.replies[version])
    if "nodemetrics" not in names:
        yield skip("crd-status", "there is no NodeMetric")
    elif "nodemetrics/status" in names:
        yield ok("crd-status", "NodeMetric has its status")
    else:
        yield fail(
            "crd-status",
            "the CRD of NodeMetric has no subresource status",
            impact="the API server refuses each report of usage (404)",
            remedy="install the CRD of Koordinator 1.2 or later",
        )


def _allowed(facts: CheckInputs, right: Right) -> bool | None:
    """Return whether the account has a right; `None` if the API server did not say."""
    reply = facts.api.replies.get(f"right {right}")
    if reply is None or reply.problem:
        return None
    value = _path(reply.body, "status", "allowed")
    return value if isinstance(value, bool) else None


def _review_results(
    facts: CheckInputs, check: str, rights: Mapping[Right, str], remedy: str
) -> Iterator[CheckResult]:
    """Report the rights that the account lacks, one line for each loss."""
    answers = {right: _allowed(facts, right) for right in rights}
    if _allowed(facts, KUBELET_PROXY) and check == "rights":
        answers = {
            right: allowed or right.resource in ("nodes/pods", "nodes/configz")
            for right, allowed in answers.items()
        }
    unknown = [str(right) for right, allowed in answers.items() if allowed is None]
    missing: dict[str, list[str]] = {}
    for right, allowed in answers.items():
        if allowed is False:
            missing.setdefault(rights[right], []).append(str(right))
    for loss, names in missing.items():
        yield fail(
            f"{check}:{names[0]}",
            f"the account may not {join_names(names)}",
            impact=loss,
            remedy=remedy,
        )
    if unknown:
        yield skip(check, f"the API server did not say whether the account may {unknown[0]}"
                   + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""))  # fmt: skip
    elif not missing:
        yield ok(check, f"the account has all {len(rights)} rights")


def check_rights(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the account has the rights of daemonset/base."""
    if reason := _why_no_reply(facts, "version"):
        yield skip("rights", reason)
        return
    remedy = "apply daemonset/base/rbac.yaml again; for kubelets before Kubernetes 1.33 "
    yield from _review_results(
        facts, "rights", BASE_RIGHTS, f"{remedy}daemonset/components/kubelet-proxy"
    )


def check_component_rights(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the account has the rights of the components that settings switch on."""
    if reason := _why_no_reply(facts, "version"):
        yield skip("component-rights", reason)
        return
    components = list(enabled_components(facts.settings))
    if not components:
        yield ok("component-rights", "the settings switch on no component with rights of its own")
    for one in components:
        yield from _review_results(
            facts,
            "component-rights",
            dict.fromkeys(one.rights, one.loss),
            f"add daemonset/components/{one.component}, which has the rights and the setting",
        )


def check_excess_rights(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the account has rights that the agent never needs."""
    if reason := _why_no_reply(facts, "version"):
        yield skip("excess-rights", reason)
        return
    if not facts.api.is_own_account:
        yield skip("excess-rights", "the account is a person's: run it in the agent's pod")
        return
    answers = {right: _allowed(facts, right) for right in EXCESS_RIGHTS}
    excess = [str(right) for right, allowed in answers.items() if allowed]
    if excess:
        yield warn(
            "excess-rights",
            f"the account may {join_names(excess)}",
            impact="who gets the agent's token, which every node has, gets these rights too",
            remedy="bind only the ClusterRoles of daemonset/ to the agent's ServiceAccount",
        )
    elif None in answers.values():
        yield skip("excess-rights", "the API server did not answer all questions")
    else:
        yield ok("excess-rights", f"none of {len(EXCESS_RIGHTS)} dangerous rights")


def _node(facts: CheckInputs) -> Mapping[str, object] | None:
    reply = facts.api.replies.get("node")
    return None if reply is None or reply.problem else _first_item(reply)


def _why_no_node(facts: CheckInputs) -> str:
    """Return why the Node is not known; empty if it is."""
    if reason := _why_no_reply(facts, "node"):
        return reason
    return "" if _node(facts) is not None else f"there is no Node {facts.api.node_name}"


def check_node(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether there is a Node of the agent's name."""
    if reason := _why_no_reply(facts, "node"):
        yield skip("node", reason)
    elif _node(facts) is None:
        yield fail(
            "node",
            f"there is no Node {facts.api.node_name}",
            impact="nothing is published for this machine",
            remedy="set node.name (XPU_AGENT_NODE__NAME from spec.nodeName), or wait until the "
            "kubelet has registered",
        )
    else:
        yield ok("node", facts.api.node_name)


def _plain_id(text: str) -> str:
    return text.strip().lower().replace("-", "")


def check_node_identity(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the Node is this machine's, by machine id and boot id."""
    if reason := _why_no_node(facts):
        yield skip("node-identity", reason)
        return
    node = _node(facts)
    theirs = _plain_id(_text(node, "status", "nodeInfo", "machineID"))
    their_boot = _plain_id(_text(node, "status", "nodeInfo", "bootID"))
    own, own_boot = _plain_id(facts.machine_id), _plain_id(facts.snapshot.node.boot_id)
    if own_boot and own_boot == their_boot:
        yield ok("node-identity", "boot ids are equal")
    elif not own or not theirs:
        yield skip("node-identity", "this machine or the Node has no machine id")
    elif own == theirs:
        yield warn(
            "node-identity",
            "machine ids are equal, boot ids differ",
            impact="the kubelet has not reported since the last boot, or two machines were "
            "cloned with one /etc/machine-id",
            remedy="see whether the kubelet runs; give cloned machines ids of their own "
            "(systemd-machine-id-setup)",
        )
    else:
        yield fail(
            "node-identity",
            f"Node {facts.api.node_name} has another machine id ({theirs[:8]}…, here {own[:8]}…)",
            impact="the agent publishes nothing: it would write over another machine's objects",
            remedy="set node.name (XPU_AGENT_NODE__NAME) to this machine's own Node",
        )


def check_node_ready(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether pods can be placed on the Node."""
    if reason := _why_no_node(facts):
        yield skip("node-ready", reason)
        return
    node = _node(facts)
    conditions = _path(node, "status", "conditions")
    ready = next(
        (one for one in conditions if _text(one, "type") == "Ready")
        if isinstance(conditions, list)
        else iter(()),
        None,
    )
    problems = []
    if ready is not None and _text(ready, "status") != "True":
        problems.append(f"Ready is {_text(ready, 'status')}: {_text(ready, 'message')}")
    if _path(node, "spec", "unschedulable") is True:
        problems.append("it is cordoned")
    if problems:
        yield warn(
            "node-ready",
            "; ".join(problems),
            impact="no new pod comes to this node, whatever its devices are",
            remedy="kubectl describe node; kubectl uncordon when the work on it is done",
        )
    elif ready is None:
        yield skip("node-ready", "the Node has no condition Ready yet")
    else:
        yield ok("node-ready", "ready and schedulable")


def check_node_resources(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether the devices of the Device object are in the Node's resources."""
    if reason := _why_no_node(facts):
        yield skip("node-resources", reason)
        return
    devices = facts.snapshot.devices.value.devices
    domains = sorted(
        {name for one in devices if one.info.managed for name, _ in one.info.resources}
    )
    if not domains:
        yield skip("node-resources", "no device here is published")
        return
    allocatable = _path(_node(facts), "status", "allocatable")
    known = allocatable if isinstance(allocatable, Mapping) else {}
    missing = [name for name in domains if name not in known]
    if missing:
        yield warn(
            "node-resources",
            f"the Node has no {join_names(missing)}",
            impact="the scheduler finds the node unfit for every pod that asks for them",
            remedy="run koord-manager, which copies the Device object to the Node, or the "
            "scheduler of this project with daemonset/scheduler-components/node-resources",
        )
    else:
        yield ok("node-resources", join_names(domains))


def check_other_writers(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether other programs write the agent's objects."""
    names = ("Device", "NodeMetric", "NodeResourceTopology")
    replies = {name: facts.api.replies.get(name) for name in names}
    usable = {
        name: reply for name, reply in replies.items() if reply is not None and not reply.problem
    }
    if not usable:
        yield skip(
            "other-writers",
            _why_no_reply(facts, "Device") or "there are no objects of this Node yet",
        )
        return
    found = {
        f"{name} by {manager}"
        for name, reply in usable.items()
        for manager in _other_managers(reply.document, name)
    }
    if found:
        yield warn(
            "other-writers",
            join_names(sorted(found)),
            impact="two writers replace each other's devices and usage: the scheduler sees now "
            "this, now that",
            remedy="remove koordlet from nodes that have this agent (a nodeSelector of its "
            "DaemonSet), or switch the object off here (publish)",
        )
    else:
        yield ok("other-writers", f"none in {join_names(list(usable))}")


# controllers of Koordinator that write other fields of these objects by design
_EXPECTED_MANAGERS = {"NodeMetric": ("koord-manager", "manager"), "Device": ("koord-manager",)}


def _other_managers(document: Mapping[str, object], kind: str) -> set[str]:
    """Return the field managers of what the agent writes, without the agent and people's tools."""
    entries = _path(document, "metadata", "managedFields")
    managers = set()
    for entry in entries if isinstance(entries, list) else ():
        manager = _text(entry, "manager")
        subresource = _text(entry, "subresource")
        if manager.startswith("kubectl") or manager == FIELD_MANAGER:
            continue
        if manager in _EXPECTED_MANAGERS.get(kind, ()) and subresource != "status":
            continue
        managers.add(manager)
    return managers - {""}


def check_node_slo(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check how old the agent's NodeSLO is, and whether it can be used."""
    if facts.agent is None:
        yield skip("node-slo", "no agent answers")
        return
    part = _path(facts.agent, "cluster", "slo")
    if not isinstance(part, Mapping):
        yield skip("node-slo", "the agent runs without a cluster")
        return
    age_s = part.get("age_s")
    view = facts.cluster_part("slo")
    limit_s = facts.settings.api.slo_stale_s
    refused = view.get("refused_count")
    if not isinstance(age_s, (int, float)):
        yield warn("node-slo", f"it was never read: {part.get('error') or 'no answer yet'}",
                   impact="it counts as frozen: strategies change nothing",
                   remedy="let the agent reach the API server, and list and watch "
                   "nodeslos")  # fmt: skip
    elif age_s > limit_s:
        yield warn("node-slo", f"it was last confirmed {age_s:.0f} s ago",
                   impact="it is frozen: existing values stay, nothing new is decided",
                   remedy="let the agent reach the API server")  # fmt: skip
    elif problem := view.get("problem"):
        yield warn("node-slo", str(problem),
                   impact="an earlier NodeSLO stays in force",
                   remedy="correct slo-controller-config of koord-manager")  # fmt: skip
    elif isinstance(refused, int) and refused:
        yield warn("node-slo", f"{refused} fields have invalid values",
                   impact="these fields keep their defaults",
                   remedy="correct slo-controller-config of koord-manager: the agent's log names "
                   "the fields")  # fmt: skip
    else:
        there = "in force" if view.get("found") else "there is none: the defaults apply"
        yield ok("node-slo", f"{there}, confirmed {age_s:.0f} s ago")


def check_node_metric(facts: CheckInputs) -> Iterator[CheckResult]:
    """Check whether usage is reported in time."""
    if not facts.settings.publish.node_metric:
        yield skip("node-metric", "publish.node_metric is off")
        return
    if reason := _why_no_reply(facts, "NodeMetric"):
        reply = facts.api.replies.get("NodeMetric")
        if reply is None or reply.code != 404:
            yield skip("node-metric", reason)
            return
        yield warn("node-metric", f"there is no NodeMetric {facts.api.node_name}",
                   impact="no usage is reported: schedulers place pods by requests alone",
                   remedy="koord-manager creates it for each Node: see whether it runs, and "
                   "whether the CRD is there")  # fmt: skip
        return
    document = facts.api.replies["NodeMetric"].document
    interval = _path(document, "spec", "metricCollectPolicy", "reportIntervalSeconds")
    interval_s = (
        float(interval) if isinstance(interval, int) else facts.settings.publish.report_interval_s
    )
    age_s = _age_s(facts, _text(document, "status", "updateTime"))
    if age_s is not None and age_s <= LATE_REPORTS * interval_s:
        yield ok("node-metric", f"reported {max(0.0, age_s):.0f} s ago")
        return
    text = "it has no report yet" if age_s is None else f"its last report is {age_s:.0f} s old"
    yield warn(
        "node-metric",
        text,
        impact="schedulers take the node for one without usage, or for an unhealthy one",
        remedy="see whether the agent runs and may patch nodemetrics/status",
    )


def _checks() -> Iterable[Check]:
    api, node = CheckGroup.API_SERVER, CheckGroup.NODE
    for name, group, run, question in (
        ("api-server", api, check_api_server, "Does the API server answer?"),
        ("api-version", api, check_api_version, "Is the agent tested with its version?"),
        ("crds", api, check_crds, "Does it have the kinds that the agent reads and writes?"),
        ("crd-status", api, check_crd_fields, "Has NodeMetric the status that the agent writes?"),
        ("rights", CheckGroup.RIGHTS, check_rights, "Has the account the rights of the base?"),
        (
            "component-rights",
            CheckGroup.RIGHTS,
            check_component_rights,
            "Has it the rights of the components that settings switch on?",
        ),
        (
            "excess-rights",
            CheckGroup.RIGHTS,
            check_excess_rights,
            "Is it without rights that the agent never needs?",
        ),
        ("node", node, check_node, "Is there a Node of the agent's name?"),
        ("node-identity", node, check_node_identity, "Is the Node this machine's?"),
        ("node-ready", node, check_node_ready, "Can pods be placed on the Node?"),
        (
            "node-resources",
            node,
            check_node_resources,
            "Has the Node the resources of its devices?",
        ),
        (
            "other-writers",
            node,
            check_other_writers,
            "Does only the agent write the Node's objects?",
        ),
        ("node-slo", node, check_node_slo, "Is the NodeSLO confirmed and valid?"),
        ("node-metric", node, check_node_metric, "Is usage reported in time?"),
    ):
        yield Check(id=name, group=group, run=run, question=question)


CHECKS = tuple(_checks())
