"""The annotation resource-status: writes it for new pods, and reads it of those on nodes.

Beside it stands in resource-spec by which policy the CPUs were chosen, if the pod does not say it.

Format as in Koordinator's `apis/extension/resource.go`. Untrusted input.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.errors import ParseError
from agent.wire_formats.json_values import JSON_ERRORS, JsonDict, compact_json
from agent.wire_formats.kernel_text import format_cpu_list, parse_cpu_list
from agent.wire_formats.quantities import format_binary, format_milli
from agent.wire_formats.resource_status import RESOURCE_STATUS
from plugins.scheduler.devices.device_table import Amounts, Labels
from plugins.scheduler.numa.cpu_choice import MILLI, NumaPod
from plugins.scheduler.numa.cpu_request import (
    RESOURCE_SPEC,
    CpuBindPolicy,
    CpuRequest,
    resource_spec,
)
from plugins.scheduler.numa.node_cpus import MAX_CPUS, MAX_ZONES
from plugins.scheduler.pod_object import CPU, parse_amounts

NO_NUMA = NumaPod()


class _NodeAmounts(msgspec.Struct):
    node: int = 0
    resources: dict[str, str | int | float] | None = None


class _Status(msgspec.Struct):
    cpuset: str = ""
    nodes: list[_NodeAmounts] | None = msgspec.field(name="numaNodeResources", default=None)


_STATUS = msgspec.json.Decoder(_Status)


def status_annotations(cpus: frozenset[int], amounts: Mapping[int, Amounts]) -> Mapping[str, str]:
    """Return the annotation of a pod; empty for one without CPUs and NUMA nodes."""
    if not cpus and not amounts:
        return {}
    status: JsonDict = {"cpuset": format_cpu_list(cpus)}
    if amounts:
        status["numaNodeResources"] = [
            {"node": node, "resources": _texts(of_node)}
            for node, of_node in sorted(amounts.items())
        ]
    return {RESOURCE_STATUS: compact_json(status, sort_keys=False)}


def spec_annotations(request: CpuRequest | None, annotations: Labels) -> Mapping[str, str]:
    """Return resource-spec with the bind policy in force; nothing if the pod names it already.

    A node's policy is a required one.
    """
    if request is None:
        return {}
    before = resource_spec(annotations)
    policy = request.bind_policy
    changes: dict[str, CpuBindPolicy] = {}
    if request.is_required and before.required_cpu_bind_policy in ("", "Default"):
        changes["required_cpu_bind_policy"] = policy
    is_named = before.required_cpu_bind_policy or before.preferred_cpu_bind_policy or changes
    if before.preferred_cpu_bind_policy == "Default" or not is_named:
        changes["preferred_cpu_bind_policy"] = policy
    if not changes:
        return {}
    spec = msgspec.to_builtins(msgspec.structs.replace(before, **changes))
    members = {name: value for name, value in spec.items() if value}
    return {RESOURCE_SPEC: compact_json(members, sort_keys=False)}


def _texts(amounts: Amounts) -> JsonDict:
    return {
        name: format_milli(amount / MILLI) if name == CPU else format_binary(amount)
        for name, amount in sorted(amounts.items())
    }


def recorded_numa(annotations: Labels) -> NumaPod:
    """Return the CPUs and NUMA nodes of a pod by its annotations; an unreadable one is ignored."""
    text = annotations.get(RESOURCE_STATUS)
    if text is None:
        return NO_NUMA
    try:
        status = _STATUS.decode(text)
        cpus = parse_cpu_list(status.cpuset, MAX_CPUS)
    except (ParseError, *JSON_ERRORS):
        return NO_NUMA
    return NumaPod(
        cpus=cpus,
        exclusive_policy=resource_spec(annotations).preferred_cpu_exclusive_policy if cpus else "",
        amounts={
            node.node: parse_amounts({k: str(v) for k, v in (node.resources or {}).items()})
            for node in (status.nodes or ())[:MAX_ZONES]
        },
    )
