"""Sets of fields: how they are written in `managedFields`, and how messages name them.

A path is a tuple of elements as `fieldsV1` spells them: `f:spec`, `k:{"type":"Ready"}`, `v:"x"`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Path = tuple[str, ...]
Fields = frozenset[Path]
Tree = dict[str, Any]

NOBODYS: Fields = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
            )
        ),
    }
)


def field(name: str) -> str:
    """Return the element of a map's key."""
    return f"f:{name}"


def item_key(item: object, keys: Iterable[str]) -> str:
    """Return the element of a list's item that is told apart by these keys."""
    values = item if isinstance(item, dict) else {}
    named = {key: values.get(key) for key in sorted(keys)}
    return "k:" + json.dumps(named, separators=(",", ":"))


def item_value(item: object) -> str:
    """Return the element of an item of a set."""
    return "v:" + json.dumps(item, separators=(",", ":"))


def encode(fields: Fields) -> Tree:
    """Return `fieldsV1`."""
    tree: Tree = {}
    for path in sorted(fields):
        node = tree
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    return _without_lone_dots(tree)


def decode(tree: Tree) -> Fields:
    """Return the set that `fieldsV1` describes."""
    result: set[Path] = set()

    def visit(node: Tree, path: Path) -> None:
        if path and (not node or "." in node):
            result.add(path)
        for element, below in node.items():
            if element != ".":
                visit(below, (*path, element))

    visit(tree, ())
    return frozenset(result)


def dotted(path: Path) -> str:
    """Return a path as messages name it: `.status.conditions[type="Ready"].status`."""
    words = []
    for element in path:
        kind, _, rest = element.partition(":")
        if kind == "f":
            words.append(f".{rest}")
        elif kind == "k":
            pairs = json.loads(rest).items()
            inner = ",".join(f"{key}={json.dumps(value)}" for key, value in pairs)
            words.append(f"[{inner}]")
        elif kind == "v":
            words.append(f"[={rest}]")
        else:
            words.append(f"[{rest}]")
    return "".join(words)


def _without_lone_dots(tree: Tree) -> Tree:
    return {
        element: {}
        if set(below) <= {"."}
        else {".": {}, **_without_lone_dots(below)}
        if "." in below
        else _without_lone_dots(below)
        for element, below in tree.items()
        if element != "."
    }
