"""Values of a NodeSLO that are not plain, each within a bound: paths, lists, free objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from agent.model.foreign.quantities import parse_quantity
from agent.model.slo.blkio import Block
from agent.model.slo.ranges import (
    MAX_INT64,
    Bandwidth,
    DeviceName,
    DirectoryName,
    Quantity,
    RelativePath,
)
from agent.model.slo.reading import MAX_SHOWN, Reader, Reading, in_words
from agent.model.slo.spec import Extensions, Features, HostApplication

MAX_TEXT = 1024
MAX_APPLICATIONS = 64
MAX_BLOCKS = 32  # of one class
MAX_FEATURES = 64
MAX_EXTENSIONS = 32
MAX_EXTENSION_BYTES = 64 * 1024  # of JSON, of all together
MAX_DEPTH = 32  # levels of lists and objects

_FEATURE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")  # the kernel's; a line of these is written to it
_PLAIN = r"[^{}\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{{}}}"  # but what, and how often
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_KEY = re.compile(r"[!-~]{1,128}")


def _matching(kind: object, pattern: str) -> Reader:
    """Return a reader of text that matches as a whole."""
    allowed = re.compile(pattern)

    def read(reading: Reading, raw: object, where: str) -> object:
        if isinstance(raw, str) and len(raw) <= MAX_TEXT and allowed.fullmatch(raw):
            return raw
        reading.refuse(where, in_words(kind), raw)
        return None

    return read


def bandwidth(reading: Reading, raw: object, where: str) -> object:
    """Read a percentage or a quantity."""
    if type(raw) is int and 0 <= raw <= 100:
        return raw
    if isinstance(raw, str) and parse_quantity(raw) is not None:
        return raw
    reading.refuse(where, "a percentage from 0 to 100 or a quantity as text", raw)
    return None


def quantity(reading: Reading, raw: object, where: str) -> object:
    """Read a quantity, which may also be a number."""
    text = str(raw) if type(raw) is int and 0 <= raw <= MAX_INT64 else raw
    if isinstance(text, str) and parse_quantity(text) is not None:
        return text
    reading.refuse(where, in_words(Quantity), raw)
    return None


def blocks(reading: Reading, raw: object, where: str) -> object:
    """Read block devices; one without a right name or type is left out."""
    found = []
    for item, place in _items(reading, raw, where, MAX_BLOCKS):
        names = {key: item[key] for key in ("name", "type") if key in item}
        before = reading.refused_count
        named = reading.over(Block(), names, place)
        if before == reading.refused_count and _has_name(reading, named.name, place):
            rest = {key: value for key, value in item.items() if key not in names}
            found.append(reading.over(named, rest, place))
    return tuple(found)


def applications(reading: Reading, raw: object, where: str) -> object:
    """Read host applications; one of which we cannot be sure where it runs is left out."""
    found: dict[str, HostApplication] = {}
    for item, place in _items(reading, raw, where, MAX_APPLICATIONS):
        before = reading.refused_count
        rest = {key: value for key, value in item.items() if key != "priority"}
        one = reading.over(HostApplication(), rest, place)
        if before < reading.refused_count or not _has_name(reading, one.name, place):
            continue
        if one.cgroup_path is not None and not one.cgroup_path.parts:
            # all that is below the base would count as one application
            reading.note(f"{place}.cgroupPath", "names no directory below its base")
        elif one.name in found:
            reading.note(f"{place}.name", "another application before has this name")
        else:
            priority = {"priority": item.get("priority")}
            found[one.name] = reading.over(one, priority, place)
    return tuple(found.values())


def _has_name(reading: Reading, name: str, place: str) -> bool:
    if not name:
        reading.note(f"{place}.name", "is missing")
    return bool(name)


def _items(
    reading: Reading, raw: object, where: str, most: int
) -> Iterator[tuple[dict[object, object], str]]:
    """Yield the objects of a list with their places."""
    if not isinstance(raw, list):
        reading.refuse(where, "a list", raw)
        return
    for number, item in enumerate(raw[:most]):
        place = f"{where}[{number}]"
        if isinstance(item, dict):
            yield item, place
        else:
            reading.refuse(place, "an object", item)
    if len(raw) > most:
        reading.note(where, f"has {len(raw)} items, of which the first {most} are used")


def features(reading: Reading, raw: object, where: str) -> object:
    """Read the kernel's scheduler features, by name."""
    found = []
    for key, value, place in _entries(reading, raw, where, MAX_FEATURES, _FEATURE):
        if isinstance(value, bool):
            found.append((key, value))
        elif value is not None:
            reading.refuse(place, "true or false", value)
    return tuple(found)


def extensions(reading: Reading, raw: object, where: str) -> object:
    """Read third parties' parts: each kept as JSON, whatever it says."""
    found, left = [], MAX_EXTENSION_BYTES
    for key, value, place in _entries(reading, raw, where, MAX_EXTENSIONS, _KEY):
        if value is None:
            continue
        text = None if isinstance(value, msgspec.Raw) else _json(value, left)
        if text is None:
            kib = MAX_EXTENSION_BYTES // 1024
            reading.note(
                place, f"must be JSON, with all others {kib} KiB and {MAX_DEPTH} levels at most"
            )
        else:
            found.append((key, text))
            left -= len(text)
    return tuple(found)


def _entries(
    reading: Reading, raw: object, where: str, most: int, allowed: re.Pattern[str]
) -> Iterator[tuple[str, object, str]]:
    """Yield key, value and place of a free object, by key."""
    if not isinstance(raw, dict):
        reading.refuse(where, "an object", raw)
        return
    good = sorted(key for key in raw if isinstance(key, str) and allowed.fullmatch(key))
    if len(good) < len(raw):
        reading.note(where, f"has {len(raw) - len(good)} keys that are no names")
    for key in good[:most]:
        yield key, raw[key], f"{where}[{key[:MAX_SHOWN]!r}]"
    if len(good) > most:
        reading.note(where, f"has {len(good)} keys, of which the first {most} are used")


def _json(value: object, most: int) -> str | None:
    """Return JSON with sorted keys; `None` for what is none, too long or too deep."""
    try:
        text = msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    return text.decode() if len(text) <= most and _shallow(text) else None


def _shallow(text: bytes) -> bool:
    """Say whether JSON has no more levels than the bound; each pass takes off the innermost."""
    left = _TEXT.sub(b"", text).translate(None, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    return not left


READERS: Mapping[object, Reader] = {
    # a path may leave out both ends, but never leads up or starts at the root
    DirectoryName: _matching(DirectoryName, r"(?!\.{1,2}\Z)" + _PLAIN.format("/", "1,128")),
    RelativePath: _matching(
        RelativePath, r"(?!/)(?!(?:.*/)?\.\.(?:/|\Z))" + _PLAIN.format("", f"0,{MAX_TEXT}")
    ),
    DeviceName: _matching(DeviceName, _PLAIN.format("", "1,253")),
    Bandwidth: bandwidth,
    Quantity: quantity,
    tuple[Block, ...]: blocks,
    tuple[HostApplication, ...]: applications,
    Features: features,
    Extensions: extensions,
}
