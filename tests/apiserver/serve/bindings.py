"""POST of `pods/NAME/binding`: node and annotations in one transaction, with preconditions.

Kubernetes: `pkg/registry/core/pod/storage/storage.go` (BindingREST), and `ValidatePodBinding`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

from tests.apiserver.log import Logged
from tests.apiserver.refusal import Cause, bad_request, conflict, invalid, not_found
from tests.apiserver.serve.answer import Answer
from tests.apiserver.serve.route import ServedRequest
from tests.apiserver.store.objects import Store, now_text

Object = dict[str, Any]

SUBRESOURCE = "binding"
PODS = "pods"


def bind(store: Store, served_request: ServedRequest, logged: Logged) -> Answer:
    """Put a pod on a node, or refuse; the node need not exist."""
    body = _body(served_request, logged)
    metadata, target = body.get("metadata") or {}, body.get("target") or {}
    with store.lock:
        pod = store.objects.get(PODS, {}).get((served_request.namespace, served_request.name))
        if pod is None:
            raise not_found(PODS, "", served_request.name)
        _check_preconditions(pod, metadata, served_request.name)
        spec = pod.get("spec") or {}
        if pod["metadata"].get("deletionTimestamp"):
            raise _refused(
                served_request.name,
                f"pod {served_request.name} is being deleted, cannot be assigned to a host",
            )
        if spec.get("nodeName"):
            node = spec["nodeName"]
            raise _refused(
                served_request.name,
                f'pod {served_request.name} is already assigned to node "{node}"',
            )
        if spec.get("schedulingGates"):
            raise _refused(
                served_request.name,
                f"pod {served_request.name} has non-empty .spec.schedulingGates",
            )
        store.put(
            store.kinds[PODS],
            (served_request.namespace, served_request.name),
            _bound(pod, target, metadata),
        )
        logged.changed = True
    success = {"metadata": {}, "status": "Success", "code": 201}
    return Answer(status=201, body={"kind": "Status", "apiVersion": "v1", **success})


def _body(served_request: ServedRequest, logged: Logged) -> Object:
    body = logged.body
    if not isinstance(body, dict) or (body.get("apiVersion"), body.get("kind")) != (
        "v1",
        "Binding",
    ):
        raise bad_request("the object provided is unrecognized")
    metadata, target = body.get("metadata") or {}, body.get("target") or {}
    if metadata.get("name") != served_request.name:
        raise bad_request("name in URL does not match name in Binding object")
    if metadata.get("namespace") not in (None, "", served_request.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    causes = []
    if target.get("kind") not in (None, "", "Node"):
        text = f'Unsupported value: "{target["kind"]}": supported values: "<empty>", "Node"'
        causes.append(Cause("FieldValueNotSupported", text, "target.kind"))
    if not target.get("name"):
        causes.append(Cause("FieldValueRequired", "Required value", "target.name"))
    if causes:
        raise invalid("Binding", "", served_request.name, causes)
    return body


def _check_preconditions(pod: Object, metadata: Mapping[str, str], name: str) -> None:
    for field, text in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        desired, there = metadata.get(field), pod["metadata"][field]
        if desired and desired != there:
            raise conflict(
                PODS,
                "",
                name,
                f"Precondition failed: {text} in precondition: {desired}, {text} in object meta:"
                f" {there}",
            )


def _refused(name: str, why: str) -> Exception:
    return conflict("pods/binding", "", name, why)


def _bound(pod: Object, target: Mapping[str, str], metadata: Mapping[str, Any]) -> Object:
    body = copy.deepcopy(pod)
    body.setdefault("spec", {})["nodeName"] = target["name"]
    annotations = metadata.get("annotations")
    if annotations:
        merged = body["metadata"].setdefault("annotations", {})
        merged.update(annotations)
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [condition for condition in conditions if condition["type"] != "PodScheduled"]
    conditions.append(
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text(time.time())}
    )
    return body
