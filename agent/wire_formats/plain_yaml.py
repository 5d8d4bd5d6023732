"""Parses YAML of untrusted files, without the language's unbounded parts."""

from __future__ import annotations

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may come without libyaml


def decode_yaml(data: bytes, max_depth: int) -> object:
    """Parse YAML without aliases and deep nesting; raises `ValueError` for anything else.

    A few lines of aliases can stand for gigabytes, and the C loader recurses for each level.
    """
    depth = 0
    try:
        for event in yaml.parse(data, Loader=_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > max_depth or isinstance(event, yaml.AliasEvent):
                raise ValueError("too deep, or with aliases")
        decoded: object = yaml.load(data, Loader=_LOADER)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return decoded
