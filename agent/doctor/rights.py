"""The rights that the agent needs at the API server, by what needs them; and some it must not have.

The manifests below daemonset/ grant exactly these; a test compares both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from agent.config.settings import Settings


class Right(msgspec.Struct, frozen=True):
    """One verb for one kind of object, in all namespaces."""

    verb: str
    group: str
    resource: str  # nodes/status: with the subresource

    def __str__(self) -> str:
        """Return the right for people: patch devices.scheduling.koordinator.sh."""
        name, _, subresource = self.resource.partition("/")
        kind = f"{name}.{self.group}" if self.group else name
        return f"{self.verb} {kind}{f'/{subresource}' if subresource else ''}"

    def review(self) -> dict[str, object]:
        """Return the SelfSubjectAccessReview that asks for this right."""
        name, _, subresource = self.resource.partition("/")
        attributes = {"verb": self.verb, "group": self.group, "resource": name}
        if subresource:
            attributes["subresource"] = subresource
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }


def _rights(group: str, resource: str, *verbs: str) -> tuple[Right, ...]:
    return tuple(Right(verb, group, resource) for verb in verbs)


SCHEDULING, SLO, TOPOLOGY = (
    "scheduling.koordinator.sh",
    "slo.koordinator.sh",
    "topology.node.k8s.io",
)

# of daemonset/base, with the loss if one is missing
BASE_RIGHTS: Mapping[Right, str] = MappingProxyType(
    {
        **dict.fromkeys(
            _rights("", "nodes", "list", "watch"),
            "the agent cannot prove that the Node is this machine's, and publishes nothing",
        ),
        **dict.fromkeys(
            _rights("", "pods", "list", "watch"),
            "allocations of pods are not seen: containers get no device, pods have no metrics",
        ),
        **dict.fromkeys(
            (*_rights("", "nodes/pods", "get"), *_rights("", "nodes/configz", "get")),
            "the kubelet refuses its pods and settings: they are known late or not at all",
        ),
        **dict.fromkeys(
            _rights("events.k8s.io", "events", "create", "patch"),
            "people see no events of failing devices and refused pods",
        ),
        **dict.fromkeys(
            _rights(SLO, "nodeslos", "list", "watch"),
            "no strategy of the NodeSLO is applied",
        ),
        **dict.fromkeys(
            (
                *_rights(SLO, "nodemetrics", "get", "list", "watch"),
                *_rights(SLO, "nodemetrics/status", "patch"),
            ),
            "no usage is reported: schedulers place pods by requests alone",
        ),
        **dict.fromkeys(
            _rights(SCHEDULING, "devices", "get", "list", "watch", "create", "patch", "delete"),
            "the Device object is not published, or gets out of date: pods do not get devices",
        ),
        **dict.fromkeys(
            _rights(TOPOLOGY, "noderesourcetopologies", "get", "list", "watch", "create", "patch"),
            "the topology is not published: schedulers place pods without NUMA nodes",
        ),
    }
)


class ComponentRights(msgspec.Struct, frozen=True):
    """The rights of a component below daemonset/components."""

    component: str
    rights: tuple[Right, ...]
    loss: str


COMPONENTS = (
    ComponentRights(
        "node-condition",
        (*_rights("", "nodes", "get"), *_rights("", "nodes/status", "patch")),
        "the conditions of the Node stay as they are",
    ),
    ComponentRights(
        "node-labels",
        _rights("", "nodes", "get", "patch"),
        "the Node gets no labels",
    ),
    ComponentRights(
        "evictions",
        _rights("", "pods/eviction", "create"),
        "no pod is evicted when CPU or memory is short",
    ),
    ComponentRights(
        "block-io",
        _rights("", "persistentvolumeclaims", "get"),
        "disks that pods name by a claim are not limited",
    ),
    ComponentRights(
        "metrics-auth",
        (
            *_rights("authentication.k8s.io", "tokenreviews", "create"),
            *_rights("authorization.k8s.io", "subjectaccessreviews", "create"),
        ),
        "nobody can read the metrics with a token: scrapes get 503",
    ),
)

# older kubelets ask for this right in place of nodes/pods and nodes/configz
KUBELET_PROXY = Right("get", "", "nodes/proxy")

# rights that the agent never needs; with one of them its token is worth stealing
EXCESS_RIGHTS = (
    Right("get", "", "secrets"),
    Right("create", "", "pods"),
    Right("create", "", "pods/exec"),
    Right("delete", "", "nodes"),
    Right("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    Right("impersonate", "", "users"),
)


def enabled_components(settings: Settings) -> Iterator[ComponentRights]:
    """Yield the components whose rights the settings need."""
    strategies = settings.enforce.strategies
    is_enforcing = settings.enforce.mode == "on"
    is_enabled = {
        "node-condition": settings.api.node_condition,
        "node-labels": settings.api.node_labels,
        "evictions": is_enforcing and "on" in (strategies.cpu_eviction, strategies.memory_eviction),
        "block-io": is_enforcing and strategies.block_io == "on",
        "metrics-auth": settings.metrics.auth.tokens,
    }
    yield from (one for one in COMPONENTS if is_enabled.get(one.component, False))


def needed_rights(settings: Settings) -> Iterable[Right]:
    """Return every right to ask for: needed ones, and those that the agent must not have."""
    rights = [*BASE_RIGHTS, KUBELET_PROXY, *EXCESS_RIGHTS]
    for component in enabled_components(settings):
        rights += component.rights
    return dict.fromkeys(rights)
