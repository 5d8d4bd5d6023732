"""Specs as they are on the wire, for the tests of a NodeSLO."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from agent.snapshot.slo import NodeSlo

Tree = Any  # JSON of a spec


def nested(path: str, value: object) -> Tree:
    """Return a spec with one value: "a.b" to {"a": {"b": value}}."""
    tree: Tree = value
    for part in reversed(path.split(".")):
        tree = {part: tree}
    return tree


def at(tree: Tree, path: str) -> Tree:
    """Return the value at a path."""
    for part in path.split("."):
        tree = tree[part]
    return tree


def to_wire(slo: NodeSlo) -> Tree:
    """Return the spec that would give this NodeSLO, every field told."""
    tree = msgspec.to_builtins(slo)
    system = tree["systemStrategy"]
    system["schedFeatures"] = dict(system["schedFeatures"])
    tree["extensions"] = {key: json.loads(text) for key, text in tree["extensions"]}
    return json.loads(json.dumps(tree))
