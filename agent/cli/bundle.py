"""The bundle of `xpu-agent doctor`: an archive with what a maintainer needs of a node.

It contains a recording, so `--host BUNDLE` of every command shows the node. Snapshot, metrics,
objects and events come from the running agent; without one they are rendered.
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.app.composition import AgentInputs, alias_tables, metric_families
from agent.config.settings import Settings
from agent.doctor.check import CheckInputs
from agent.doctor.inputs import fetch_page
from agent.doctor.report import Finding, result_rows
from agent.metrics.exposition import render_metrics
from agent.objects.publishers import publishers
from agent.objects.yaml_text import to_yaml
from agent.recording.capture import capture_host
from agent.recording.host_source import HOST_FILE, TAPES_FOLDER
from agent.recording.pseudonyms import RecordingContents, pseudonymise_all
from agent.recording.redaction import redact_all
from agent.recording.writer import SALT_BYTES, recording_files
from agent.snapshot.node import NodeSnapshot
from agent.version import VERSION
from agent.wire_formats.json_values import JSON_ERRORS
from agent.wire_formats.snapshot_json import encode_json, snapshot_json

OBJECTS = ("device", "nodemetric", "topology")

SERVED_FILES = {  # file of the bundle: path at the running agent
    "metrics.txt": "/metrics",
    "healthz.txt": "/healthz?verbose",
    "events.json": "/api/v1/events",
    "audit.json": "/api/v1/audit",
}

# namespaces that every cluster has: they identify nobody
COMMON_NAMES = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})

# a bundle has only those annotations and labels of pods that the agent reads
RELEVANT_KEYS = ("koordinator.sh/", "xpu-agent.io/", "kubernetes.io/config.")

_README = """\
# A node as xpu-agent doctor found it

Made by `xpu-agent doctor --bundle`, version {version}. {names}
Tokens, keys, passwords and values of containers' variables were removed.

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

_PSEUDONYMISED_NOTE = (
    "Names, serial numbers and addresses were replaced by others, equal ones by equal ones."
)

_ORIGINAL_NOTE = "It holds the names of pods and hosts, serial numbers and addresses as they are."


class BundleSource(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a bundle."""

    inputs: AgentInputs
    snapshot: NodeSnapshot  # of a discovery that measured usage as well
    tapes: Mapping[str, bytes]
    check_inputs: CheckInputs
    findings: tuple[Finding, ...]
    settings: list[dict[str, str]]  # rows of the settings in force


def bundle_files(source: BundleSource, *, pseudonymise: bool) -> dict[str, bytes]:
    """Return the files of the bundle by name."""
    agent = drop_unread_keys(source.check_inputs.agent)
    snapshot = drop_unread_keys(snapshot_json(source.snapshot, source.inputs.clock.monotonic()))
    texts = {
        "checks.json": encode_json({"checks": result_rows(source.findings)}),
        "snapshot.json": encode_json(snapshot),
        "agent.json": encode_json(agent),
        "settings.json": encode_json({"settings": source.settings}),
        **dict(
            _served_files(source.inputs.settings) if agent is not None else _rendered_files(source)
        ),
    }
    host_source = source.inputs.host_source
    recorded = RecordingContents(
        tree=capture_host(host_source.files, pods=True),
        tapes=source.tapes,
        texts=texts,
        names=frozenset((*identifying_names(agent), *identifying_names(snapshot))) - COMMON_NAMES,
    )
    recorded = redact_all(recorded)
    if pseudonymise:
        recorded = pseudonymise_all(recorded, secrets.token_bytes(SALT_BYTES))
    readme = _README.format(
        version=VERSION,
        names=_PSEUDONYMISED_NOTE if pseudonymise else _ORIGINAL_NOTE,
        host=HOST_FILE,
        tapes=TAPES_FOLDER,
        source="of the running agent" if agent is not None else "rendered: no agent answered",
    )
    files = recording_files(
        host_source, recorded.tree, recorded.tapes, readme, pseudonymised=pseudonymise
    )
    return {**files, **recorded.texts}


def _served_files(settings: Settings) -> Iterator[tuple[str, bytes]]:
    """Yield the pages of the running agent, without those that it does not answer."""
    for name, path in SERVED_FILES.items():
        # an agent that is not ready says why, with 503
        body, _ = fetch_page(settings, path, (200, 503))
        if body is not None:
            yield name, body
    body, _ = fetch_page(settings, "/api/v1/objects")
    for one in _decode_objects(body):
        yield f"objects/{one.kind.lower()}.yaml", one.text.encode()


class _ServedObject(msgspec.Struct, frozen=True):
    kind: str
    text: str


class _ServedObjects(msgspec.Struct, frozen=True):
    objects: tuple[_ServedObject, ...] = ()


def _decode_objects(body: bytes | None) -> tuple[_ServedObject, ...]:
    try:
        return msgspec.json.decode(body or b"{}", type=_ServedObjects).objects
    except JSON_ERRORS:
        return ()  # an agent of another version


def _rendered_files(source: BundleSource) -> Iterator[tuple[str, bytes]]:
    """Yield what an agent would publish after this discovery."""
    inputs, snapshot = source.inputs, source.snapshot
    by_name = publishers(inputs.settings, inputs.runbook)
    for name in OBJECTS:
        for desired in by_name[name].render(snapshot, inputs.clock.wall()):
            yield f"objects/{desired.kind.lower()}.yaml", to_yaml(desired.body)
    metrics = inputs.settings.metrics
    yield (
        "metrics.txt",
        render_metrics(
            snapshot,
            inputs.clock.monotonic(),
            vendor_families=metric_families(inputs.vendors),
            pods=metrics.pods,
            aliases=metrics.aliases,
            max_series=metrics.max_series,
            alias_tables=alias_tables(inputs.vendors),
            runbook=inputs.runbook,
        ),
    )


def identifying_names(data: object) -> Iterator[str]:
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
        yield from identifying_names(item)


def drop_unread_keys(data: object) -> object:
    """Return the JSON of a snapshot without annotations and labels of pods that the agent ignores.

    An annotation may hold a whole manifest, with the secrets in its environment.
    """
    if isinstance(data, Mapping):
        pod = "namespace" in data
        return {
            key: _relevant_pairs(value)
            if pod and key in ("annotations", "labels") and isinstance(value, (list, tuple))
            else drop_unread_keys(value)
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [drop_unread_keys(item) for item in data]
    return data


def _relevant_pairs(pairs: Iterable[object]) -> list[object]:
    return [
        pair
        for pair in pairs
        if isinstance(pair, (list, tuple)) and any(key in str(pair[:1]) for key in RELEVANT_KEYS)
    ]


BUNDLE_MODE = 0o600  # a bundle tells much of a node


def write_bundle(path: str, files: Mapping[str, bytes], now_s: float) -> None:
    """Write all files into one archive (.tar.gz); raise `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        os.fdopen(os.open(path, flags, BUNDLE_MODE), "wb") as file,
        tarfile.open(fileobj=file, mode="w:gz") as archive,
    ):
        for name, data in files.items():
            info = tarfile.TarInfo(f"xpu-agent-doctor/{name}")
            info.size, info.mode, info.mtime = len(data), BUNDLE_MODE, int(now_s)
            archive.addfile(info, io.BytesIO(data))
