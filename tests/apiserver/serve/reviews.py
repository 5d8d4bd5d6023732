"""TokenReview and SubjectAccessReview: whose a token is, and what a user may do.

Kubernetes: `pkg/registry/authentication/tokenreview/storage.go` and
`pkg/registry/authorization/subjectaccessreview/rest.go`. Nothing is stored. A token that nobody has
is an answer, and no error; its reason is the one of an authenticator that knows no such token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.apiserver.access import ADMIN, Access
from tests.apiserver.log import Logged
from tests.apiserver.rbac import Rule
from tests.apiserver.refusal import Cause, Refusal, bad_request, invalid
from tests.apiserver.serve.answer import Answer
from tests.apiserver.serve.route import ServedRequest

Object = dict[str, Any]

TOKEN_REVIEWS = ("authentication.k8s.io", "v1", "tokenreviews")
ACCESS_REVIEWS = ("authorization.k8s.io", "v1", "subjectaccessreviews")
KINDS = {TOKEN_REVIEWS: "TokenReview", ACCESS_REVIEWS: "SubjectAccessReview"}
AUDIENCE = "https://kubernetes.default.svc.cluster.local"  # of tokens without another
SERVICE_ACCOUNT = "system:serviceaccount:"


def is_review(served: ServedRequest) -> bool:
    """Return whether a request is for one of these resources."""
    return (served.group, served.version, served.resource) in KINDS


def review(
    access: Access, rules: Mapping[str, Iterable[Rule]], served: ServedRequest, logged: Logged
) -> Answer:
    """Answer a review; `rules` are those of each user."""
    if served.verb != "create" or served.name or served.namespace:
        raise Refusal(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    resource = (served.group, served.version, served.resource)
    body = _body(logged, f"{served.group}/{served.version}", KINDS[resource])
    spec = body.get("spec") or {}
    if resource == TOKEN_REVIEWS:
        status = _token_status(access, spec)
    else:
        _check_access_spec(spec, body.get("metadata") or {})
        status = {"allowed": _allows(rules, spec)}
        if status["allowed"]:
            status["reason"] = 'RBAC: allowed by ClusterRoleBinding "test"'
    metadata = {"creationTimestamp": None}
    return Answer(status=201, body={**body, "metadata": metadata, "status": status})


def _body(logged: Logged, version: str, kind: str) -> Object:
    body = logged.body
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized")
    if (body.get("apiVersion"), body.get("kind")) != (version, kind):
        raise bad_request(
            f'no kind "{body.get("kind", "")}" is registered for version '
            f'"{body.get("apiVersion", "")}" in scheme "pkg/api/legacyscheme/scheme.go"'
        )
    return body


def _token_status(access: Access, spec: Mapping[str, Any]) -> Object:
    token = spec.get("token")
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    requested = spec.get("audiences") or []
    user = access.users.get(token)
    audiences = access.audiences.get(token, (AUDIENCE,))
    shared = [one for one in (requested or [AUDIENCE]) if one in audiences]
    if user is None or not shared:
        error = "[invalid bearer token, token lookup failed]"
        return {"user": {}, "error": error}
    status: Object = {"authenticated": True, "user": _user(user), "audiences": shared}
    return status


def _user(name: str) -> Object:
    groups = ["system:authenticated"]
    if name.startswith(SERVICE_ACCOUNT):
        namespace = name.removeprefix(SERVICE_ACCOUNT).partition(":")[0]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", *groups]
    return {
        "username": name,
        "uid": f"uid-of-{name}",
        "groups": groups,
        "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
    }


def _check_access_spec(spec: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    causes = []
    if metadata:
        causes.append(Cause("FieldValueInvalid", "must be empty", "metadata"))
    if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        causes.append(Cause("FieldValueInvalid", text, "spec.resourceAttributes"))
    if not spec.get("user") and not spec.get("groups"):
        text = "at least one of user or group must be specified"
        causes.append(Cause("FieldValueInvalid", text, "spec.user"))
    if causes:
        raise invalid("SubjectAccessReview", "authorization.k8s.io", "", causes)


def _allows(rules: Mapping[str, Iterable[Rule]], spec: Mapping[str, Any]) -> bool:
    """Return whether a rule of the user, or of one of the groups, covers a path or a resource."""
    if spec.get("user") == ADMIN:
        return True
    own = [rule for name in _subjects(spec) for rule in rules.get(name, ())]
    attributes = spec.get("nonResourceAttributes")
    if attributes is None:
        wanted = spec["resourceAttributes"]
        served = ServedRequest(
            verb=wanted.get("verb", ""),
            group=wanted.get("group", ""),
            resource=wanted.get("resource", ""),
            subresource=wanted.get("subresource", ""),
            name=wanted.get("name", ""),
            namespace=wanted.get("namespace", ""),
        )
        return any(rule.allows(served) for rule in own)
    verb, path = attributes.get("verb", ""), attributes.get("path", "")
    return any(
        (verb in rule.verbs or "*" in rule.verbs) and _covers(rule.non_resource_urls, path)
        for rule in own
    )


def _subjects(spec: Mapping[str, Any]) -> list[str]:
    return [spec.get("user") or "", *(spec.get("groups") or ())]


def _covers(urls: Iterable[str], path: str) -> bool:
    return any(
        url in ("*", path) or (url.endswith("*") and path.startswith(url.removesuffix("*")))
        for url in urls
    )
