"""The bundle of `xpu-agent doctor`: what a maintainer needs to see of a node, as one archive.

It holds a recording, so `--host BUNDLE` of every command shows the node. Where an agent runs, its
snapshot, metrics, objects and events are those of the running agent; else they are rendered.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.cli.record import SALT_BYTES, recording_header
from agent.config.sections import Settings
from agent.doctor.base import Facts, Finding
from agent.doctor.looking import fetch
from agent.doctor.report import rows
from agent.model.snapshot import NodeSnapshot
from agent.node.parts import Parts
from agent.node.publishers import publishers
from agent.publish.exposition import render_metrics
from agent.publish.snapshot_json import dumps, snapshot_json
from agent.publish.wire.yaml_text import to_yaml
from agent.recording.capture import capture
from agent.recording.format import write
from agent.recording.open import HOST_FILE, TAPES
from agent.recording.pseudonym import Originals, pseudonymise_all
from agent.version import VERSION

OBJECTS = ("device", "nodemetric", "topology")
SERVED = {  # file of the bundle: path at the running agent
    "metrics.txt": "/metrics",
    "healthz.txt": "/healthz?verbose",
    "events.json": "/api/v1/events",
    "audit.json": "/api/v1/audit",
}
# namespaces that every cluster has: they identify nobody
COMMON_NAMES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
# a bundle has only those annotations and labels of pods that the agent reads
READ_KEYS = ("koordinator.sh/", "xpu-agent.io/", "kubernetes.io/config.")
_README = """\
# A node as xpu-agent doctor found it

Made by `xpu-agent doctor --bundle`, version {version}. {names}

| file | holds |
| --- | --- |
| `checks.json` | the findings |
| `{host}`, `{tapes}/` | files of the host, answers of vendors' libraries: `--host ARCHIVE` |
| `snapshot.json` | a new discovery by this command |
| `agent.json` | the snapshot of the running agent; `null`: none answered |
| `metrics.txt`, `objects/` | {source} |
| `healthz.txt`, `events.json`, `audit.json` | of the running agent, if one answered |
| `settings.json` | the settings in force, and where each comes from |
"""
_REPLACED = "Names, serial numbers and addresses were replaced by others, equal ones by equal ones."
_GENUINE = "It holds the names of pods and hosts, serial numbers and addresses as they are."


class BundleSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle is made of."""

    parts: Parts
    snapshot: NodeSnapshot  # of a discovery that measured usage as well
    tapes: Mapping[str, bytes]
    facts: Facts
    findings: tuple[Finding, ...]
    settings: list[dict[str, str]]  # rows of the settings in force


def bundle_files(source: BundleSource, *, pseudonymise: bool) -> dict[str, bytes]:
    """Return the files of the bundle by name."""
    agent = without_unread_keys(source.facts.agent)
    own = without_unread_keys(snapshot_json(source.snapshot, source.parts.clock.monotonic()))
    texts = {
        "checks.json": dumps({"checks": rows(source.findings)}),
        "snapshot.json": dumps(own),
        "agent.json": dumps(agent),
        "settings.json": dumps({"settings": source.settings}),
        **dict(_published(source.parts.settings) if agent is not None else _rendered(source)),
    }
    opened = source.parts.opened
    recorded = Originals(
        tree=capture(opened.files, pods=True),
        tapes=source.tapes,
        texts=texts,
        names=frozenset((*names_in(agent), *names_in(own))) - COMMON_NAMES,
    )
    if pseudonymise:
        recorded = pseudonymise_all(recorded, secrets.token_bytes(SALT_BYTES))
    header = recording_header(opened, pseudonymised=pseudonymise)
    readme = _README.format(
        version=VERSION,
        names=_REPLACED if pseudonymise else _GENUINE,
        host=HOST_FILE,
        tapes=TAPES,
        source="of the running agent" if agent is not None else "rendered: no agent answered",
    )
    return {
        "README.md": readme.encode(),
        **recorded.texts,
        HOST_FILE: write(recorded.tree, header).encode(),
        **{f"{TAPES}/{vendor}.jsonl": data for vendor, data in recorded.tapes.items()},
    }


def _published(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield what the running agent publishes, without the pages that it does not answer."""
    for name, path in SERVED.items():
        body, _ = fetch(settings, path)
        if body is not None:
            yield name, body
    body, _ = fetch(settings, "/api/v1/objects")
    for one in _objects(body):
        yield f"objects/{one.kind.lower()}.yaml", one.text.encode()


class _Object(msgspec.Struct, frozen=True):
    kind: str
    text: str


class _Objects(msgspec.Struct, frozen=True):
    objects: tuple[_Object, ...] = ()


def _objects(body: bytes | None) -> tuple[_Object, ...]:
    try:
        return msgspec.json.decode(body or b"{}", type=_Objects).objects
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()  # an agent of another version


def _rendered(source: BundleSource) -> Iterator[tuple[str, bytes]]:
    """Yield what an agent would publish after this discovery."""
    parts, snapshot = source.parts, source.snapshot
    by_name = publishers(parts.settings)
    for name in OBJECTS:
        for desired in by_name[name].render(snapshot, parts.clock.wall()):
            yield f"objects/{desired.kind.lower()}.yaml", to_yaml(desired.body)
    metrics = parts.settings.metrics
    yield (
        "metrics.txt",
        render_metrics(
            snapshot,
            parts.clock.monotonic(),
            vendor_families=parts.families(),
            pods=metrics.pods,
            aliases=metrics.aliases,
        ),
    )


def names_in(data: object) -> Iterator[str]:
    """Yield the names of the Node, of pods and of namespaces in the JSON of a snapshot."""
    if isinstance(data, Mapping):
        node = data.get("node")
        if isinstance(node, Mapping) and isinstance(node.get("name"), str):
            yield node["name"]
        if isinstance(data.get("namespace"), str):
            values = (data.get(key) for key in ("namespace", "name", "pod"))
            yield from (name for name in values if isinstance(name, str))
    inside: Iterable[object] = ()
    if isinstance(data, Mapping):
        inside = data.values()
    elif isinstance(data, (list, tuple)):
        inside = data
    for item in inside:
        yield from names_in(item)


def without_unread_keys(data: object) -> object:
    """Return the JSON of a snapshot without annotations and labels of pods that the agent ignores.

    An annotation may hold a whole manifest, with the secrets in its environment.
    """
    if isinstance(data, Mapping):
        pod = "namespace" in data
        return {
            key: _read_pairs(value)
            if pod and key in ("annotations", "labels") and isinstance(value, (list, tuple))
            else without_unread_keys(value)
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [without_unread_keys(item) for item in data]
    return data


def _read_pairs(pairs: Iterable[object]) -> list[object]:
    return [
        pair
        for pair in pairs
        if isinstance(pair, (list, tuple)) and any(key in str(pair[:1]) for key in READ_KEYS)
    ]
