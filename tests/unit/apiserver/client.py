"""A client of the plainest kind, so that nothing of ours judges the server."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.apiserver import ApiServer
from tests.patience import PATIENCE_S

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
NODE_METRICS = "/apis/slo.koordinator.sh/v1alpha1/nodemetrics"
PODS = "/api/v1/pods"
TIMEOUT_S = PATIENCE_S
TIME = "2026-01-02T03:04:05.000006Z"

Object = dict[str, Any]


class Client:
    """Answers as (status, decoded body); one connection a request."""

    def __init__(self, api: ApiServer, token: str | None = None) -> None:
        self._api = api
        self._token = api.token_file.read_text() if token is None else token
        self._context = ssl.create_default_context(cafile=str(api.ca_file))

    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> http.client.HTTPResponse:
        """Return the answer once its headers are there."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._api.port, context=self._context, timeout=TIMEOUT_S
        )
        sent = {"User-Agent": "plain/1.0", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        payload = None
        if body is not None:
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = content_type
        target = f"{path}?{urlencode(query)}" if query else path
        connection.request(method, target, payload, sent)
        return connection.getresponse()

    def call(self, method: str, path: str, body: object = None, **query: Any) -> tuple[int, Any]:
        """Return status and body."""
        with self.open(method, path, body, **query) as answer:
            text = answer.read()
            if answer.headers.get_content_type() == "text/plain":
                return answer.status, text.decode()
            return answer.status, json.loads(text) if text else None

    def get(self, path: str, **query: object) -> tuple[int, Any]:
        """GET."""
        return self.call("GET", path, **query)

    def apply(self, path: str, body: object, **query: object) -> tuple[int, Any]:
        """Apply, by default as the manager `xpu-agent`."""
        parameters = {"fieldManager": "xpu-agent", **query}
        return self.call("PATCH", path, body, content_type=APPLY, **parameters)

    def merge(self, path: str, body: object, **query: object) -> tuple[int, Any]:
        """Merge-patch."""
        return self.call("PATCH", path, body, content_type=MERGE, **query)

    def watch(self, path: str, **query: object) -> Watching:
        """Open a watch."""
        return Watching(self.open("GET", path, None, "", None, watch="true", **query))


class Watching:
    """The events of one watch, one at a time."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self._answer = answer

    def next(self) -> Object | None:
        """Return the next event; `None` at the end."""
        line = self._answer.readline()
        event: Object | None = json.loads(line) if line else None
        return event

    def types(self, count: int) -> list[tuple[str, str]]:
        """Return types and names of so many events."""
        events = [self.next() or {} for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]

    def close(self) -> None:
        """Leave."""
        self._answer.close()


def device(name: str = "node-a", *, count: int = 1, **metadata: object) -> Object:
    """Return a Device with so many cards."""
    cards = [{"type": "gpu", "id": f"GPU-{i}", "minor": i, "health": True} for i in range(count)]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": cards},
    }


def pod(name: str, node: str = "node-a", **labels: str) -> Object:
    """Return a Pod of the namespace default."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running"},
    }


def metric(name: str = "node-a") -> Object:
    """Return a NodeMetric as koord-manager creates it."""
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1",
        "kind": "NodeMetric",
        "metadata": {"name": name},
        "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
    }


def event(**fields: object) -> Object:
    """Return an event on a Node; a field that is `None` is left out."""
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "node-a.1", "namespace": "default"},
        "eventTime": TIME,
        "reportingController": "xpu-agent.io/xpu-agent",
        "reportingInstance": "node-a",
        "action": "Watching",
        "reason": "DeviceLost",
        "type": "Warning",
        "note": "card 3 fell off the bus",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-a"},
        **fields,
    }
    return {key: value for key, value in body.items() if value is not None}
