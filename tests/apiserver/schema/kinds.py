"""Every kind that the server knows, with the structure of each version."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from tests.apiserver.schema import builtin
from tests.apiserver.schema.shape import Schema, Shape

CRDS = Path(__file__).resolve().parent.parent / "crds"


class Kind(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One resource. `shapes` is by served version; the last version is the stored one."""

    group: str
    plural: str
    kind: str
    singular: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = False
    status: bool = False  # has a status subresource
    custom: bool = False  # defined by a CRD
    shapes: Mapping[str, Shape]
    also_in: tuple[str, str] = ("", "")  # group and version under which it is served as well

    @property
    def stored_version(self) -> str:
        """Return the version in which objects are kept."""
        return tuple(self.shapes)[-1]

    def api_version(self, version: str) -> str:
        """Return what objects of this version carry."""
        return f"{self.group}/{version}" if self.group else version


def builtin_kinds() -> tuple[Kind, ...]:
    """Return the kinds that every cluster has."""
    return (
        _builtin("", "namespaces", "Namespace", builtin.NAMESPACE, short=("ns",)),
        _builtin("", "nodes", "Node", builtin.NODE, short=("no",), status=True),
        _builtin("", "pods", "Pod", builtin.POD, short=("po",), status=True, namespaced=True),
        _builtin(
            "events.k8s.io",
            "events",
            "Event",
            builtin.EVENT,
            short=("ev",),
            namespaced=True,
            also_in=("", "v1"),
        ),
        _builtin(
            "policy",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            builtin.DISRUPTION_BUDGET,
            short=("pdb",),
            status=True,
            namespaced=True,
        ),
        _builtin(
            "apps",
            "daemonsets",
            "DaemonSet",
            builtin.DAEMON_SET,
            short=("ds",),
            status=True,
            namespaced=True,
        ),
        _builtin("coordination.k8s.io", "leases", "Lease", builtin.LEASE, namespaced=True),
        _builtin(
            "discovery.k8s.io",
            "endpointslices",
            "EndpointSlice",
            builtin.ENDPOINT_SLICE,
            namespaced=True,
        ),
    )


def custom_kinds(topology_versions: Iterable[str] = ("v1alpha1", "v1alpha2")) -> tuple[Kind, ...]:
    """Return the kinds of the CRDs."""
    topology = {"v1alpha1": builtin.TOPOLOGY_V1ALPHA1, "v1alpha2": builtin.TOPOLOGY_V1ALPHA2}
    return (
        *(custom_kind(path.stem) for path in sorted(CRDS.glob("*.json"))),
        Kind(
            group="topology.node.k8s.io",
            plural="noderesourcetopologies",
            kind="NodeResourceTopology",
            singular="noderesourcetopology",
            short_names=("node-res-topo",),
            custom=True,
            shapes={version: whole(topology[version]) for version in topology_versions},
        ),
    )


@functools.cache
def custom_kind(plural: str, without: tuple[str, ...] = ()) -> Kind:
    """Return the kind of a manifest; `without` leaves out fields, as an older release did.

    A field is named by its path without indices: `spec.devices.conditions`.
    """
    spec = json.loads((CRDS / f"{plural}.json").read_text())["spec"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    for path in without:
        _forget(schema, path.split("."))
    return Kind(
        group=spec["group"],
        plural=plural,
        kind=spec["names"]["kind"],
        singular=spec["names"]["singular"],
        status="status" in version.get("subresources", {}),
        custom=True,
        shapes={version["name"]: whole(schema)},
    )


def whole(schema: Schema) -> Shape:
    """Return the shape of a whole object: what every object has, and the schema's own fields."""
    properties = {
        **schema.get("properties", {}),
        "apiVersion": builtin.STRING,
        "kind": builtin.STRING,
        "metadata": builtin.METADATA,
    }
    return Shape({**schema, "type": "object", "properties": properties})


def _builtin(
    group: str,
    plural: str,
    kind: str,
    schema: Schema,
    *,
    short: tuple[str, ...] = (),
    status: bool = False,
    namespaced: bool = False,
    also_in: tuple[str, str] = ("", ""),
) -> Kind:
    return Kind(
        group=group,
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        short_names=short,
        namespaced=namespaced,
        status=status,
        shapes={"v1": whole(schema)},
        also_in=also_in,
    )


def _forget(schema: Schema, path: list[str]) -> None:
    for name in path[:-1]:
        schema = schema["properties"][name]
        while schema.get("type") == "array":
            schema = schema["items"]
    del schema["properties"][path[-1]]
