"""POST of `pods/NAME/eviction`: budgets, preconditions, dry run, as the registry of pods has them.

Kubernetes: `pkg/registry/core/pod/storage/eviction.go`. What surprises, and is so there: a pod with
several budgets is answered 201 with a failed Status of code 500; a pod that is not running, or
that terminates, is deleted whatever its budget says; an unknown version of the body is a 400.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

from tests.apiserver.log import Logged
from tests.apiserver.refusal import Cause, Refusal, bad_request, conflict, invalid, not_found
from tests.apiserver.serve.answer import Answer
from tests.apiserver.serve.route import ServedRequest
from tests.apiserver.store.objects import Store, now_text
from tests.apiserver.store.registry import Registry

Object = dict[str, Any]

SUBRESOURCE = "eviction"
VERSIONS = ("policy/v1", "policy/v1beta1")
PODS, BUDGETS = "pods", "poddisruptionbudgets"
ENDED = ("Succeeded", "Failed")
DEFAULT_GRACE_S = 30
MAX_DISRUPTED = 2000
VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."
SEVERAL = (
    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"
    " support."
)


def evict(
    store: Store, registry: Registry, served_request: ServedRequest, logged: Logged
) -> Answer:
    """Evict a pod, or refuse."""
    options = _options(served_request, logged)
    is_dry_run = options.get("dryRun") == ["All"]
    with store.lock:
        pod = store.objects.get(PODS, {}).get((served_request.namespace, served_request.name))
        if pod is None:
            raise not_found(PODS, "", served_request.name)
        if not _may_ignore_budgets(pod):
            budgets = _budgets_of(store, pod)
            if len(budgets) > 1:
                failed = {"metadata": {}, "status": "Failure", "message": SEVERAL, "code": 500}
                return Answer(status=201, body={"kind": "Status", "apiVersion": "v1", **failed})
            if budgets and not _is_healthy_without(pod, budgets[0]):
                _check_and_decrement(store, budgets[0], served_request.name, is_dry_run=is_dry_run)
        _check_preconditions(pod, options.get("preconditions") or {}, served_request.name)
        if not is_dry_run:
            _delete(store, registry, pod, options)
            logged.changed = True
    success = {"metadata": {}, "status": "Success", "code": 201}
    return Answer(status=201, body={"kind": "Status", "apiVersion": "v1", **success})


def _options(served_request: ServedRequest, logged: Logged) -> Object:
    body = logged.body
    if not isinstance(body, dict):
        raise bad_request("the object provided is unrecognized")
    version, kind = body.get("apiVersion", ""), body.get("kind", "")
    if version not in VERSIONS or kind != "Eviction":
        raise bad_request(
            f'no kind "{kind}" is registered for version "{version}" in scheme'
            ' "pkg/api/legacyscheme/scheme.go"'
        )
    metadata = body.get("metadata") or {}
    if metadata.get("name") != served_request.name:
        raise bad_request("name in URL does not match name in Eviction object")
    if metadata.get("namespace") not in (None, "", served_request.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    options: Object = dict(body.get("deleteOptions") or {})
    in_query = [logged.query["dryRun"]] if logged.query.get("dryRun") else []
    dry_run = options.get("dryRun") or []
    for value in (*in_query, *dry_run):
        if value != "All":
            message = f'Unsupported value: "{value}": supported values: "All"'
            cause = Cause("FieldValueNotSupported", message, "dryRun")
            raise invalid("CreateOptions", "meta.k8s.io", "", [cause])
    if in_query and dry_run and in_query != dry_run:
        raise Refusal(
            500,
            "",
            f"Non-matching dry-run options in request and content: {in_query} and {dry_run}",
        )
    options["dryRun"] = dry_run or in_query
    return options


def _may_ignore_budgets(pod: Object) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return phase in (*ENDED, "Pending") or bool(pod["metadata"].get("deletionTimestamp"))


def _budgets_of(store: Store, pod: Object) -> list[Object]:
    labels = pod["metadata"].get("labels") or {}
    return [
        budget
        for (namespace, _), budget in store.objects.get(BUDGETS, {}).items()
        if namespace == pod["metadata"]["namespace"]
        and _selects((budget.get("spec") or {}).get("selector") or {}, labels)
    ]


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches; an empty one matches nothing."""
    pairs: Mapping[str, str] = selector.get("matchLabels") or {}
    terms: list[Mapping[str, Any]] = selector.get("matchExpressions") or []
    if not pairs and not terms:
        return False
    return all(labels.get(key) == value for key, value in pairs.items()) and all(
        _term(term, labels) for term in terms
    )


def _term(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = term["key"], term.get("values") or []
    match term["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _is_healthy_without(pod: Object, budget: Object) -> bool:
    """Return whether the pod is not ready and the budget has enough pods that are."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    if any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    ):
        return False
    if (budget.get("spec") or {}).get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _check_and_decrement(store: Store, budget: Object, pod: str, *, is_dry_run: bool) -> None:
    name, status = budget["metadata"]["name"], copy.deepcopy(budget.get("status") or {})
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        text = f"The disruption budget {name} is still being processed by the server."
        raise _too_many(text, 10)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise _forbidden(name, "pdb disruptions allowed is negative")
    if len(status.get("disruptedPods") or {}) > MAX_DISRUPTED:
        text = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        raise _forbidden(name, text)
    if allowed == 0:
        raise _too_many(
            f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods and"
            f" has {status.get('currentHealthy', 0)} currently",
            None,
        )
    if is_dry_run:
        return
    status["disruptionsAllowed"] = allowed - 1
    disrupted = {**(status.get("disruptedPods") or {}), pod: now_text(time.time())}
    status["disruptedPods"] = disrupted
    body = {**copy.deepcopy(budget), "status": status}
    store.put(store.kinds[BUDGETS], (budget["metadata"]["namespace"], name), body)


def _too_many(text: str, retry_after_s: float | None) -> Refusal:
    cause = Cause("DisruptionBudget", text)
    return Refusal(429, "TooManyRequests", VIOLATED, causes=[cause], retry_after_s=retry_after_s)


def _forbidden(name: str, why: str) -> Refusal:
    message = f'poddisruptionbudget.policy "{name}" is forbidden: {why}'
    details: dict[str, object] = {"name": name, "group": "policy", "kind": "poddisruptionbudget"}
    return Refusal(403, "Forbidden", message, details=details)


def _check_preconditions(pod: Object, preconditions: Mapping[str, str], name: str) -> None:
    for field, text in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        desired, there = preconditions.get(field), pod["metadata"][field]
        if desired and desired != there:
            raise conflict(
                PODS,
                "",
                name,
                f"Precondition failed: {text} in precondition: {desired}, {text} in object meta:"
                f" {there}",
            )


def _delete(store: Store, registry: Registry, pod: Object, options: Mapping[str, Any]) -> None:
    """Delete at once what nobody runs; else leave the end to the kubelet."""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    grace_s = options.get("gracePeriodSeconds")
    if grace_s is None:
        grace_s = spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    kind, key = store.kinds[PODS], (metadata["namespace"], metadata["name"])
    is_ended = (pod.get("status") or {}).get("phase") in ENDED
    if not spec.get("nodeName") or is_ended or not grace_s:
        store.delete(kind, key)
        return
    if metadata.get("deletionTimestamp"):
        return
    body = copy.deepcopy(pod)
    body["metadata"]["deletionTimestamp"] = now_text(time.time() + registry.ahead_s + grace_s)
    body["metadata"]["deletionGracePeriodSeconds"] = grace_s
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    conditions.append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": now_text(time.time()),
        }
    )
    store.put(kind, key, body)
