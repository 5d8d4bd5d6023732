"""Removes secrets from what leaves a node: tokens, keys, passwords, environments of pods.

Secrets are found by their form (PEM, JWT, Authorization headers, passwords in URLs), by the name of
the field or option before them, and as values of environment variables in manifests. A name alone
removes no number and no truth value: counters are called `token_read_errors`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from agent.recording.pseudonyms import RecordingContents
from agent.recording.tree import TreeBuilder, TreeFiles
from agent.wire_formats.snapshot_json import encode_json

REMOVED = "(removed)"
_BINARY = "/config"  # PCI configuration spaces
MAX_DEPTH = 64

_SECRET_NAME = re.compile(
    r"(?:^|[^a-z])(?:token|password|passwd|passphrase|secret|authorization|credentials?|api.?key"
    r"|access.?key|private.?key|client.?key.?data|client.?certificate.?data"
    r"|certificate.?authority.?data|bcrypt|basic.?auth.?users)$",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"(?:|-?[0-9.]+|true|false|null|none|on|off|auto|\*+|\(removed\))")
_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    (  # with its end or cut off; JSON writes line ends as \n
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{1,40}-----(?:[A-Za-z0-9+/=\\\s:,.]|-(?!----))*"
            r"(?:-----END [A-Z0-9 ]{1,40}-----)?"
        ),
        REMOVED,
    ),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?"), REMOVED),  # JWT
    (re.compile(r"\bLS0tLS1CRUdJTi[A-Za-z0-9+/=]+"), REMOVED),  # PEM in base64
    (re.compile(r"\b(bearer|basic|negotiate)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REMOVED}"),
    (re.compile(r"(://)[^/\s:@\"']*:[^/\s@\"']+@"), rf"\1{REMOVED}@"),
    (re.compile(r"\$2[abxy]\$[0-9]{2}\$[./A-Za-z0-9]{20,}"), REMOVED),  # bcrypt
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}"), REMOVED),
)
# name and value in YAML, in options of commands, mounts and the kernel, and in escaped JSON
_PAIR = re.compile(
    r"(?P<name>(?:token|passw(?:or)?d|passphrase|secret|authorization|api[_-]?key"
    r"|access[_-]?key|private[_-]?key|client-(?:key|certificate)-data"
    r"|certificate-authority-data))"
    r"(?P<mark>\\{0,8}[\"']?\s*[:=]\s*)"
    r"(?P<value>\\{0,8}\"(?:[^\"\\]|\\.){0,8192}?\\{0,8}\"|'[^']{0,8192}'|\\{0,8}[\"'][^\"']+"
    r"|[^\s,;&\"'{}\[\]]+)",
    re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """Return a text without the secrets in it."""
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    return _PAIR.sub(_redact_pair, text)


def _redact_pair(match: re.Match[str]) -> str:
    value = match["value"]
    bare = value.strip("\\\"'")
    if _HARMLESS.fullmatch(bare):
        return match[0]
    return f"{match['name']}{match['mark']}{value.replace(bare, REMOVED)}"


def redact_data(value: object, name: str = "", depth: int = 0) -> object:
    """Return JSON data without the secrets in it; `name` is that of the member.

    Texts that are JSON themselves, such as annotations, are redacted inside as well.
    """
    if depth > MAX_DEPTH:
        return REMOVED
    if isinstance(value, dict):
        if isinstance(value.get("key"), str) and "value" in value:  # a row of the settings
            own = redact_data(value["value"], value["key"], depth + 1)
            return {**value, "value": own}
        return {key: redact_data(item, str(key), depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        if name.lower() in ("env", "environment"):
            return [_redact_variable(item, depth) for item in value]
        return [redact_data(item, name, depth + 1) for item in value]
    if not isinstance(value, str):
        return value
    if _SECRET_NAME.search(name) and not _HARMLESS.fullmatch(value):
        return REMOVED
    return _redact_nested(value, depth)


def _redact_nested(text: str, depth: int) -> str:
    if text[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return redact_text(text)
        redacted = redact_data(document, "", depth + 1)
        return text if redacted == document else json.dumps(redacted)
    return redact_text(text)


def _redact_variable(item: object, depth: int) -> object:
    """Return a variable of a container without its value: `{"name", "value"}`, or `NAME=value`."""
    if isinstance(item, dict):
        return {
            key: REMOVED if key == "value" and one else redact_data(one, str(key), depth + 1)
            for key, one in item.items()
        }
    if isinstance(item, str) and "=" in item:
        return f"{item.partition('=')[0]}={REMOVED}"
    return item


def redact_file(name: str, data: bytes) -> bytes:
    """Return the content of a file without the secrets in it."""
    if name.endswith(".json"):
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return _redact_bytes(data)
        redacted = redact_data(document)
        return data if redacted == document else encode_json(redacted)
    return _redact_bytes(data)


def _redact_bytes(data: bytes) -> bytes:
    text = data.decode("utf-8", "surrogateescape")
    redacted = redact_text(text)
    return data if redacted == text else redacted.encode("utf-8", "surrogateescape")


def redact_all(contents: RecordingContents) -> RecordingContents:
    """Return the contents of a bundle without the secrets in them."""
    return replace(
        contents,
        tree=_redact_tree(contents.tree),
        tapes=_mapped(contents.tapes, lambda _, data: _redact_bytes(data)),
        texts=_mapped(contents.texts, redact_file),
    )


def _mapped(files: Mapping[str, bytes], change: Callable[[str, bytes], bytes]) -> dict[str, bytes]:
    return {name: change(name, data) for name, data in files.items()}


def _redact_tree(tree: TreeFiles) -> TreeFiles:
    builder = TreeBuilder()
    for directory, entries in tree.walk():
        for name, entry in entries.items():
            path = f"{directory}/{name}"
            is_text = isinstance(entry, bytes) and not path.endswith(_BINARY)
            builder.put(path, _redact_bytes(entry) if is_text else entry)  # type: ignore[arg-type]
    return builder.build()
