"""One HTTP extender as kube-scheduler's `HTTPExtender` calls it, and judges its answers."""

from __future__ import annotations

import http.client
import json
import queue
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.kubescheduler.configuration import ExtenderConfig

Object = dict[str, Any]
GO_TYPES = {str: "string", list: "array", dict: "object", bool: "bool", float: "number"}
MAX_EXTENDER_PRIORITY, MAX_NODE_SCORE = 10, 100


class ExtenderFailed(Exception):
    """A call failed; the text is kube-scheduler's."""


class FilterOutcome(msgspec.Struct, frozen=True):
    """What an extender left of the nodes, and its reasons."""

    kept: tuple[str, ...]
    failed: Mapping[str, str] = {}
    unresolvable: Mapping[str, str] = {}


class HttpExtender:
    """Calls one extender. For any number of threads."""

    def __init__(self, config: ExtenderConfig) -> None:
        self.config = config
        self.url = config.url_prefix.rstrip("/")
        self.address = urlsplit(self.url)
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()

    def is_interested(self, pod: Object) -> bool:
        """Return whether a container asks for a managed resource; without any, always."""
        names = {managed_resource.name for managed_resource in self.config.managed_resources}
        return not names or any(names & set(amounts) for amounts in _amounts_of(pod))

    def filter(self, pod: Object, nodes: Mapping[str, Object]) -> FilterOutcome:
        """Return the nodes that remain; raise `ExtenderFailed`."""
        answer = self._post(self.config.filter_verb, self._nodes_body(pod, nodes))
        result = _Answer(answer, "ExtenderFilterResult")
        if error := result.text("Error"):
            raise ExtenderFailed(error)
        names, listed = result.texts("NodeNames"), result.member("Nodes", dict)
        records: tuple[str, ...] = ()
        if self.config.node_cache_capable and names is not None:
            for name in names:
                if name not in nodes:
                    raise ExtenderFailed(
                        f'extender "{self.url}" claims a filtered node "{name}" '
                        "which is not found in the input node list"
                    )
            records = tuple(names)
        elif listed is not None:
            items = _Answer(listed, "NodeList").member("items", list) or []
            records = tuple(
                item["metadata"]["name"] for item in items
            )  # not compared with the input
        return FilterOutcome(
            records, result.text_map("FailedNodes"), result.text_map("FailedAndUnresolvableNodes")
        )

    def prioritize(self, pod: Object, nodes: Mapping[str, Object]) -> dict[str, int] | None:
        """Return what is added to the nodes' scores; `None` if the answer is dropped silently."""
        try:
            answer = self._post(self.config.prioritize_verb, self._nodes_body(pod, nodes))
        except ExtenderFailed:
            return None
        scores: dict[str, int] = {}
        factor = self.config.weight * MAX_NODE_SCORE // MAX_EXTENDER_PRIORITY
        for entry in answer if isinstance(answer, list) else (None,):
            if not isinstance(entry, dict):
                return None
            members = {name.lower(): value for name, value in entry.items()}
            host, score = members.get("host", ""), members.get("score", 0)
            if type(host) is not str or type(score) is not int:
                return None
            scores[host] = scores.get(host, 0) + score * factor
        return scores

    def bind(self, pod: Object, node: str) -> None:
        """Have the pod bound; raise `ExtenderFailed`. Nobody checks whether it is."""
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        answer = self._post(self.config.bind_verb, body)
        if error := _Answer(answer, "ExtenderBindingResult").text("Error"):
            raise ExtenderFailed(error)

    def preempt(
        self, pod: Object, victims: Mapping[str, Sequence[Object]]
    ) -> dict[str, list[Object]]:
        """Return the nodes and victims that remain; raise `ExtenderFailed`."""
        is_capable = self.config.node_cache_capable
        meta = {
            node: {
                "Pods": [{"UID": one["metadata"]["uid"]} for one in pods],
                "NumPDBViolations": 0,
            }
            for node, pods in victims.items()
        }
        whole = {
            node: {"Pods": [_sent(one) for one in pods], "NumPDBViolations": 0}
            for node, pods in victims.items()
        }
        body = {
            "Pod": _sent(pod),
            "NodeNameToVictims": None if is_capable else whole,
            "NodeNameToMetaVictims": meta if is_capable else None,
        }
        result = _Answer(self._post(self.config.preempt_verb, body), "ExtenderPreemptionResult")
        remaining: dict[str, list[Object]] = {}
        for node, one in (result.member("NodeNameToMetaVictims", dict) or {}).items():
            if node not in victims:
                raise ExtenderFailed(f'nodeinfo not found for node name "{node}"')
            by_uid = {pod["metadata"]["uid"]: pod for pod in victims[node]}
            listed = _Answer(one, "MetaVictims").member("Pods", list) or []
            uids = [_Answer(entry, "MetaPod").text("UID") for entry in listed]
            for uid in uids:
                if uid not in by_uid:
                    raise ExtenderFailed(
                        f"extender: {self.url} claims to preempt pod (UID: &{{{uid}}}) on node: "
                        f"{node}, but the pod is not found on that node"
                    )
            if not uids and not self.config.ignorable:
                raise ExtenderFailed(f'expected at least one victim pod on node "{node}"')
            if uids:
                remaining[node] = [by_uid[uid] for uid in uids]
        return remaining

    def _nodes_body(self, pod: Object, nodes: Mapping[str, Object]) -> Object:
        items = [_sent(node) for node in nodes.values()]
        is_capable = self.config.node_cache_capable
        return {
            "Pod": _sent(pod),
            "Nodes": None if is_capable else {"metadata": {}, "items": items},
            "NodeNames": list(nodes) if is_capable else None,
        }

    def _post(self, verb: str, body: object) -> object:
        """Return the first JSON value of the answer; `None` for null."""
        url = f"{self.url}/{verb}"
        data = json.dumps(body, separators=(",", ":")).encode()
        status, text = self._exchange(url, f"{self.address.path}/{verb}", data)
        if status != 200:
            raise ExtenderFailed(f"failed {verb} with extender at URL {url}, code {status}")
        if not text.strip():
            raise ExtenderFailed("EOF")
        try:
            value, _ = json.JSONDecoder().raw_decode(text.lstrip())
        except ValueError as error:
            first = text.lstrip()[0]
            message = f"invalid character '{first}' looking for beginning of value"
            raise ExtenderFailed(message) from error
        return value

    def _exchange(self, url: str, path: str, data: bytes) -> tuple[int, str]:
        connection = self._connection()
        try:
            connection.putrequest("POST", path, skip_accept_encoding=True)
            for name, value in (
                ("User-Agent", "Go-http-client/1.1"),
                ("Content-Length", str(len(data))),
                ("Content-Type", "application/json"),
                ("Accept-Encoding", "gzip"),
            ):
                connection.putheader(name, value)
            connection.endheaders(data)
            response = connection.getresponse()
            text = response.read().decode()
        except TimeoutError as error:
            connection.close()
            raise ExtenderFailed(
                f'Post "{url}": context deadline exceeded '
                "(Client.Timeout exceeded while awaiting headers)"
            ) from error
        except ConnectionRefusedError as error:
            address = f"{self.address.hostname}:{self.address.port}"
            raise ExtenderFailed(
                f'Post "{url}": dial tcp {address}: connect: connection refused'
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ExtenderFailed(f'Post "{url}": EOF') from error
        self._idle.put(connection)
        return response.status, text

    def _connection(self) -> http.client.HTTPConnection:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            host, port = str(self.address.hostname), self.address.port
            timeout_s, tls = self.config.timeout_s, self.config.tls_config
            if not self.config.enable_https:
                return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
            context = ssl.create_default_context(cafile=(tls.ca_file or None) if tls else None)
            if tls is None or not tls.ca_file:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if tls is not None and tls.cert_file:
                context.load_cert_chain(tls.cert_file, tls.key_file)
            return http.client.HTTPSConnection(
                host, port or 443, timeout=timeout_s, context=context
            )
        return connection


class _Answer:
    """Reads members as Go does: keys in any case, null as absent, a wrong type as an error."""

    def __init__(self, value: object, type_name: str) -> None:
        if value is not None and not isinstance(value, dict):
            raise self._wrong(value, f"value of type v1.{type_name}")
        self._members = {name.lower(): one for name, one in (value or {}).items()}
        self._type_name = type_name

    def member(self, name: str, kind: type[Any]) -> Any:
        value = self._members.get(name.lower())
        if value is not None and type(value) is not kind:
            go_types: dict[object, str] = {list: "[]string", dict: "map[string]string"}
            go_type = go_types.get(kind, "string")
            raise self._wrong(value, f"struct field {self._type_name}.{name} of type {go_type}")
        return value

    def text(self, name: str) -> str:
        return self.member(name, str) or ""

    def texts(self, name: str) -> list[str] | None:
        values = self.member(name, list)
        for value in values or ():
            if type(value) is not str:
                raise self._wrong(value, f"struct field {self._type_name}.{name} of type string")
        return values  # type: ignore[no-any-return]  # of a JSON list

    def text_map(self, name: str) -> dict[str, str]:
        values = self.member(name, dict) or {}
        for value in values.values():
            if type(value) is not str:
                raise self._wrong(value, f"struct field {self._type_name}.{name} of type string")
        return dict(values)

    def _wrong(self, value: object, where: str) -> ExtenderFailed:
        kind = GO_TYPES.get(type(value), "number")
        return ExtenderFailed(f"json: cannot unmarshal {kind} into Go {where}")


def _sent(body: Object) -> Object:
    """Return an object as Go encodes it inside of a request: without kind and apiVersion."""
    return {name: value for name, value in body.items() if name not in ("kind", "apiVersion")}


def _amounts_of(pod: Object) -> list[Mapping[str, str]]:
    spec = pod["spec"]
    containers = [*spec.get("containers", ()), *(spec.get("initContainers") or ())]
    resources = [container.get("resources") or {} for container in containers]
    return [resource.get(key) or {} for resource in resources for key in ("requests", "limits")]
