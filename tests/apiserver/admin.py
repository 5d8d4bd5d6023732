"""Objects as an administrator of the cluster sees and changes them, without the network."""

from __future__ import annotations

import copy
from typing import Any

from tests.apiserver.schema.kinds import Kind
from tests.apiserver.store.objects import Store
from tests.apiserver.store.registry import Registry
from tests.apiserver.store.target import Target, Way

Object = dict[str, Any]


class Objects:
    """Thread-safe. Resources are named by plural, kind or short name."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry

    def put(self, body: Object, *, manager: str = "admin", checked: bool = True) -> Object:
        """Create or replace an object; return what is stored now.

        A status that is given is written with the rest, one that is not stays. A missing namespace
        is made. Unchecked, the object is stored as it is: wrong types, nulls.
        """
        sent = copy.deepcopy(body)
        target = self._target(sent, whole=True)
        way = Way(manager=manager, checked=checked)
        with self._store.lock:
            if target.namespace and ("", target.namespace) not in self._store.objects["namespaces"]:
                self.put(namespace(target.namespace))
            if (live := self._store.of(target.kind).get(target.key)) is not None:
                if target.kind.status and "status" in live:
                    sent.setdefault("status", live["status"])
                return copy.deepcopy(self._registry.replace(target, sent, way).body)
            sent["metadata"].pop("resourceVersion", None)
            return copy.deepcopy(self._registry.create(target, sent, way).body)

    def apply(
        self, body: Object, *, manager: str, force: bool = False, subresource: str = ""
    ) -> Object:
        """Apply a configuration as another manager; raise `Refusal` on a conflict."""
        sent = copy.deepcopy(body)
        target = self._target(sent, subresource=subresource)
        way = Way(manager=manager, force=force)
        return copy.deepcopy(self._registry.apply(target, sent, way).body)

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """Return a copy of an object in its stored version, or `None`."""
        with self._store.lock:
            return copy.deepcopy(self._store.of(self._kind(resource)).get((namespace, name)))

    def list(self, resource: str, namespace: str = "") -> list[Object]:
        """Return copies of all objects of a resource, by namespace and name."""
        with self._store.lock:
            objects = sorted(self._store.of(self._kind(resource)).items())
            return [copy.deepcopy(body) for key, body in objects if namespace in ("", key[0])]

    def delete(self, resource: str, name: str, namespace: str = "") -> bool:
        """Delete an object and what it owns; return whether it was there."""
        kind = self._kind(resource)
        with self._store.lock:
            there = (namespace, name) in self._store.of(kind)
            if there:
                self._store.delete(kind, (namespace, name))
            return there

    def _kind(self, name: str) -> Kind:
        kind = self._store.find(name)
        if kind is None:
            raise LookupError(f"{name}: the server has no such resource")
        return kind

    def _target(self, body: Object, *, subresource: str = "", whole: bool = False) -> Target:
        kind = self._kind(body["kind"])
        group, _, version = body.get("apiVersion", "").rpartition("/")
        metadata = body.setdefault("metadata", {})
        space = (metadata.get("namespace") or "default") if kind.namespaced else ""
        return Target(
            kind=kind,
            group=group if version else kind.group,
            version=version or kind.stored_version,
            name=metadata.get("name", ""),
            namespace=space,
            subresource=subresource,
            whole=whole,
        )


def namespace(name: str) -> Object:
    """Return a Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def node(name: str, *, machine_id: str = "") -> Object:
    """Return a Node as a kubelet registers it."""
    serial = sum(name.encode())
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": "2026-01-02T03:04:05Z",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "127.0.0.1"},
                {"type": "Hostname", "address": name},
            ],
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [condition],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": machine_id or f"{serial:032x}",
                "systemUUID": f"{serial:032x}",
                "bootID": f"00000000-0000-4000-8000-{serial:012x}",
                "kernelVersion": "6.8.0",
                "osImage": "test",
                "containerRuntimeVersion": "containerd://2.1.0",
                "kubeletVersion": "v1.36.0",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }
