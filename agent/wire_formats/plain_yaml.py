"""Parses YAML: of untrusted files without the language's unbounded parts, and of settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from agent.errors import BadConfig

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may come without libyaml


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, of which YAML's loaders drop the first."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Check the keys, before other mappings are merged into the mapping."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in keys:
                problem = f"{key.value!r} is there twice"
                raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
            keys.add((key.tag, key.value))
        return node


def decode_settings_yaml(data: bytes, path: str) -> object:
    """Parse the settings of a file; raise `BadConfig` with the line, also for a repeated key."""
    try:
        return yaml.load(data, Loader=_UniqueKeyLoader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line, problem = _line_and_problem(error)
        place = path if line is None else f"{path}:{line}"
        raise BadConfig(f"{place}: not YAML: {problem}") from error


def _line_and_problem(error: Exception) -> tuple[int | None, str]:
    """Return the line of an error, from 1, and what is wrong there."""
    if isinstance(error, RecursionError):
        return None, "nested too deep"
    if isinstance(error, yaml.reader.ReaderError):
        return None, f"{error.reason} at byte {error.position}"
    mark = getattr(error, "problem_mark", None)
    problem = " ".join(str(getattr(error, "problem", error)).split())
    return mark.line + 1 if mark else None, problem


def _events_with_depth(data: bytes) -> Iterator[tuple[int, yaml.Event]]:
    depth = 0
    for event in yaml.parse(data, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        yield depth, event


def decode_yaml_documents(data: bytes, max_depth: int) -> list[object]:
    """Parse all documents of YAML; raise `yaml.YAMLError`, or `ValueError` for deep nesting.

    The C loader recurses for each level: without the limit it ends the process.
    """
    if any(depth > max_depth for depth, _ in _events_with_depth(data)):
        raise ValueError("too deep")
    return list(yaml.load_all(data, Loader=_LOADER))


def decode_yaml(data: bytes, max_depth: int) -> object:
    """Parse YAML without aliases and deep nesting; raises `ValueError` for anything else.

    A few lines of aliases can stand for gigabytes, and the C loader recurses for each level.
    """
    try:
        for depth, event in _events_with_depth(data):
            if depth > max_depth or isinstance(event, yaml.AliasEvent):
                raise ValueError("too deep, or with aliases")
        decoded: object = yaml.load(data, Loader=_LOADER)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, RecursionError) as error:
        line, problem = _line_and_problem(error)
        raise ValueError(problem if line is None else f"line {line}: {problem}") from error
    return decoded
