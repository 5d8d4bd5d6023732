"""Types of whole renderings: those of Kubernetes, and of the few kinds of other projects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jsonschema import Draft202012Validator

from tests.unit.daemonset.kubernetes_types import KubernetesTypes
from tests.unit.daemonset.manifests import Object

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_STRATEGY = {"type": "object", "additionalProperties": False, "properties": {"type": _TEXT}}


def _closed(required: tuple[str, ...], **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


_META = {"apiVersion": _TEXT, "kind": _TEXT, "metadata": {"type": "object"}}
# the fields that the manifests use, as the projects document them
FOREIGN = {
    "PodMonitor": _closed(
        ("spec",),
        **_META,
        spec=_closed(
            ("selector", "podMetricsEndpoints"),
            selector=_closed((), matchLabels={"type": "object"}),
            podMetricsEndpoints={
                "type": "array",
                "items": _closed(
                    ("port",),
                    port=_TEXT,
                    interval={"type": "string", "pattern": r"^\d+(ms|s|m|h)$"},
                    relabelings={
                        "type": "array",
                        "items": _closed(
                            (),
                            sourceLabels=_TEXTS,
                            targetLabel=_TEXT,
                            regex=_TEXT,
                            action={"enum": ["labeldrop", "replace"]},
                        ),
                    },
                    honorLabels={"type": "boolean"},
                ),
            },
        ),
    ),
    "SecurityContextConstraints": _closed(
        (
            *("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID"),
            *("allowHostPorts", "allowPrivilegedContainer", "readOnlyRootFilesystem"),
            *("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities"),
            "volumes",
        ),
        **_META,
        **{
            name: {"type": "boolean"}
            for name in (
                *("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID"),
                *("allowHostPorts", "allowPrivilegeEscalation", "allowPrivilegedContainer"),
                "readOnlyRootFilesystem",
            )
        },
        **dict.fromkeys(
            (
                *("allowedCapabilities", "defaultAddCapabilities", "requiredDropCapabilities"),
                *("seccompProfiles", "volumes"),
            ),
            _TEXTS,
        ),
        **dict.fromkeys(
            ("runAsUser", "seLinuxContext", "fsGroup", "supplementalGroups"), _STRATEGY
        ),
    ),
}


def check_types(types: KubernetesTypes, objects: Iterable[Object]) -> Iterator[str]:
    """Yield what is wrong with the objects, each with its kind and name."""
    for item in objects:
        where = f"{item['kind']} {item['metadata']['name']}"
        if item["kind"] in FOREIGN:
            errors = Draft202012Validator(FOREIGN[item["kind"]]).iter_errors(item)
            yield from (f"{where}: {error.message}" for error in errors)
        else:
            yield from (f"{where}: {problem}" for problem in types.problems(item))
