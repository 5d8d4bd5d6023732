"""SelfSubjectAccessReview: what the user who asks may do, by the rules that refuse requests.

Kubernetes: `pkg/registry/authorization/selfsubjectaccessreview/rest.go` and
`pkg/apis/authorization/validation`. Nothing is stored. Every authenticated user may ask
(ClusterRole system:basic-user). A right that no rule gives is not denied: it is just not allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.apiserver.access import ADMIN
from tests.apiserver.log import Logged
from tests.apiserver.rbac import Rule
from tests.apiserver.refusal import Cause, Refusal, bad_request, invalid
from tests.apiserver.serve.answer import Answer
from tests.apiserver.serve.route import ServedRequest

GROUP, VERSION, RESOURCE = "authorization.k8s.io", "v1", "selfsubjectaccessreviews"
KIND = "SelfSubjectAccessReview"
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/{VERSION}",
    "resources": [
        {
            "name": RESOURCE,
            "singularName": KIND.lower(),
            "namespaced": False,
            "kind": KIND,
            "verbs": ["create"],
        }
    ],
}
_ONE_OF = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


def is_review(served: ServedRequest) -> bool:
    """Return whether a request is a review of its own user's rights."""
    return (served.group, served.version, served.resource) == (GROUP, VERSION, RESOURCE)


def review(user: str, rules: Iterable[Rule], served: ServedRequest, logged: Logged) -> Answer:
    """Answer a review; `rules` are those of the user."""
    if served.verb != "create" or served.name or served.namespace:
        message = "the server does not allow this method on the requested resource"
        raise Refusal(405, "MethodNotAllowed", message)
    spec = _spec(logged.body)
    attributes = spec.get("resourceAttributes")
    allowed = user == ADMIN
    if not allowed and attributes is not None:
        served = ServedRequest(
            verb=attributes.get("verb", ""),
            group=attributes.get("group", ""),
            resource=attributes.get("resource", ""),
            subresource=attributes.get("subresource", ""),
            name=attributes.get("name", ""),
            namespace=attributes.get("namespace", ""),
        )
        allowed = any(rule.allows(served) for rule in rules)
    elif not allowed:
        path = spec["nonResourceAttributes"].get("path", "")
        allowed = any(path in rule.non_resource_urls for rule in rules)
    status: dict[str, Any] = {"allowed": allowed}
    if allowed:
        status["reason"] = f'RBAC: allowed by ClusterRoleBinding "test" to User "{user}"'
    body = {"kind": KIND, "apiVersion": f"{GROUP}/{VERSION}", "metadata": {}, "spec": spec}
    return Answer(status=201, body={**body, "status": status})


def _spec(body: object) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized")
    version, kind = body.get("apiVersion", ""), body.get("kind", "")
    if (version, kind) != (f"{GROUP}/{VERSION}", KIND):
        raise bad_request(
            f'no kind "{kind}" is registered for version "{version}" in scheme'
            ' "pkg/api/legacyscheme/scheme.go"'
        )
    spec = body.get("spec") or {}
    causes = []
    if body.get("metadata"):
        causes.append(Cause("FieldValueInvalid", "Invalid value: must be empty", "metadata"))
    if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
        causes.append(Cause("FieldValueInvalid", _ONE_OF, "spec.resourceAttributes"))
    if causes:
        raise invalid(KIND, GROUP, "", causes)
    return dict(spec)
