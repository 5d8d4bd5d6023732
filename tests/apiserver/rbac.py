"""Who may do what: rules as in a ClusterRole, checked by table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tests.apiserver.refusal import Refusal
from tests.apiserver.serve.route import ServedRequest


class Rule(msgspec.Struct, frozen=True, rename="camel"):
    """One rule of a ClusterRole."""

    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")

    def allows(self, request: ServedRequest) -> bool:
        """Return whether this rule covers a request for a resource."""
        resource = (
            f"{request.resource}/{request.subresource}" if request.subresource else request.resource
        )
        return (
            _in(request.verb, self.verbs)
            and _in(request.group, self.api_groups)
            and (_in(resource, self.resources) or f"*/{request.subresource}" in self.resources)
            and (not self.resource_names or request.name in self.resource_names)
        )


ALL = Rule(api_groups=("*",), resources=("*",), verbs=("*",))


def read_roles(path: Path) -> tuple[Rule, ...]:
    """Return the rules of all Roles and ClusterRoles of a YAML file."""
    rules: list[Rule] = []
    for document in yaml.safe_load_all(path.read_text()):
        if isinstance(document, dict) and document.get("kind") in ("ClusterRole", "Role"):
            rules += msgspec.convert(document.get("rules") or [], list[Rule])
    return tuple(rules)


def authorize(user: str, rules: Iterable[Rule], request: ServedRequest) -> None:
    """Refuse with 403 what no rule allows. Paths that are no resources are open to all users."""
    if not request.resource or any(rule.allows(request) for rule in rules):
        return
    kind = f"{request.resource}.{request.group}" if request.group else request.resource
    shown = f'{kind} "{request.name}"' if request.name else kind
    resource = (
        f"{request.resource}/{request.subresource}" if request.subresource else request.resource
    )
    scope = (
        f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
    )
    details: dict[str, Any] = {
        "name": request.name,
        "group": request.group,
        "kind": request.resource,
    }
    raise Refusal(
        403,
        "Forbidden",
        f'{shown} is forbidden: User "{user}" cannot {request.verb} resource "{resource}" in API '
        f'group "{request.group}" {scope}',
        details={key: value for key, value in details.items() if value},
    )


def _in(value: str, listed: tuple[str, ...]) -> bool:
    return value in listed or "*" in listed
