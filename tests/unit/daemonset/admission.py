"""What an API server does with ValidatingAdmissionPolicies: match a request, evaluate, deny."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.unit.daemonset.cel import CelError, evaluate
from tests.unit.daemonset.manifests import Object

_VARIABLE = re.compile(r"\bvariables\.(\w+)")


class _Context:
    """The names that the expressions of one policy may use; its variables, each when needed."""

    def __init__(self, names: Mapping[str, Any], variables: Iterable[Mapping[str, str]]) -> None:
        self._names = dict(names)
        self._expressions = {one["name"]: one["expression"] for one in variables}
        self._values: dict[str, Any] = {}

    def evaluate(self, expression: str) -> Any:
        for name in _VARIABLE.findall(expression):
            if name not in self._values:
                self._values[name] = self.evaluate(self._expressions[name])
        return evaluate(expression, {**self._names, "variables": self._values})


def denials(objects: Iterable[Object], request: Mapping[str, Any]) -> list[str]:
    """Return the messages with which the policies among `objects` deny a request."""
    items = tuple(objects)
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in items
        if one["kind"] == "ValidatingAdmissionPolicy"
    }
    messages: list[str] = []
    for binding in items:
        if binding["kind"] != "ValidatingAdmissionPolicyBinding":
            continue
        policy = policies[binding["spec"]["policyName"]]
        assert "Deny" in binding["spec"]["validationActions"]
        found, param = _parameter(items, binding["spec"].get("paramRef"))
        if found and _matches(policy["matchConstraints"]["resourceRules"], request):
            messages += _denials_of(policy, request, param)
    return messages


def _parameter(items: Iterable[Object], reference: Mapping[str, str] | None) -> tuple[bool, Any]:
    if reference is None:
        return True, None
    for one in items:
        where = one["metadata"]
        same = (where["name"], where.get("namespace")) == (
            reference["name"],
            reference["namespace"],
        )
        if one["kind"] == "ServiceAccount" and same:
            return True, one
    assert reference["parameterNotFoundAction"] == "Allow"
    return False, None


def _matches(rules: Iterable[Mapping[str, Any]], request: Mapping[str, Any]) -> bool:
    where = request["resource"]
    subresource = request.get("subResource", "")
    resource = f"{where['resource']}/{subresource}" if subresource else where["resource"]
    return any(
        _listed(request["operation"], rule["operations"])
        and _listed(where["group"], rule["apiGroups"])
        and _listed(where["version"], rule["apiVersions"])
        and _listed(resource, rule["resources"])
        for rule in rules
    )


def _listed(word: str, words: Iterable[str]) -> bool:
    return any(one in ("*", word) for one in words)


def _denials_of(
    policy: Mapping[str, Any], request: Mapping[str, Any], param: object
) -> Iterator[str]:
    names = {
        "request": {"subResource": "", "userInfo": request["user"], **request},
        "object": request.get("object"),
        "oldObject": request.get("oldObject"),
        "params": param,
    }
    context = _Context(names, policy.get("variables", ()))
    assert policy["failurePolicy"] == "Fail"
    try:
        if not all(context.evaluate(one["expression"]) for one in policy["matchConditions"]):
            return
        for validation in policy["validations"]:
            if context.evaluate(validation["expression"]) is not True:
                yield validation["message"]
    except CelError as error:
        yield f"error: {error}"
