"""Settings of this run: file, then environment, then flags; each value with its origin."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent.config.decode import declared, settings_from
from agent.config.field import Rule
from agent.config.sections import Settings
from agent.errors import BadConfig

PREFIX = "XPU_AGENT_"
MAX_FILE = 1 << 20
DEFAULT_FILE = Path("/etc/xpu-agent/config.yaml")


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and for each key that is not at its default where its value came from."""

    settings: Settings
    origins: Mapping[str, str]  # "publish.pcie_scope" -> "file x.yaml", "environment X", "flag --x"


class Entry(msgspec.Struct, frozen=True):
    """One setting with its dotted key; `kind` is its type."""

    key: str
    kind: object
    default: object
    rule: Rule


def entries(cls: type[msgspec.Struct] = Settings, where: str = "") -> Iterator[Entry]:
    """Yield every setting there is, in the order of declaration."""
    defaults = cls()
    for name, (kind, rule) in declared(cls).items():
        key = f"{where}{name}"
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from entries(kind, f"{key}.")
        else:
            yield Entry(key, kind, getattr(defaults, name), rule)


def value_of(settings: Settings, key: str) -> object:
    """Return the value of a dotted key."""
    value: object = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def read_file(path: Path) -> Mapping[str, object]:
    """Return a settings file's content; raise `BadConfig` with file and line."""
    import yaml  # noqa: PLC0415 - 15 ms that a run without a file need not pay

    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE + 1)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from error
    if len(text) > MAX_FILE:
        raise BadConfig(f"{path}: larger than {MAX_FILE} bytes")
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise BadConfig(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise BadConfig(f"{path}: must be a mapping of sections")
    return data


def chosen_file(given: str | None, default: Path = DEFAULT_FILE) -> Path | None:
    """Return the file of `--config`, else the node's own if there is one."""
    if given:
        return Path(given)
    return default if os.path.exists(default) else None


def _put(data: dict[str, Any], key: str, value: object) -> None:
    *sections, name = key.split(".")
    for part in sections:
        inner = data.get(part)
        data[part] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[part]
    data[name] = value


def _keys(data: object, where: str = "") -> Iterator[str]:
    if isinstance(data, Mapping) and data:
        for name, value in data.items():
            yield from _keys(value, f"{where}.{name}" if where else str(name))
    else:
        yield where


def load(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, tuple[str, object]]
) -> Loaded:
    """Merge the sources; raise `BadConfig` that names the key and the source.

    `flags` maps a dotted key to the flag's name and its value. Variables that start with
    `XPU_AGENT_` and hold `__` name a setting: `XPU_AGENT_PUBLISH__PCIE_SCOPE=switch`.
    """
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        content = read_file(file)
        data = dict(content)
        try:
            settings_from(data)
        except BadConfig as error:
            raise BadConfig(f"{file}: {error}") from error
        origins.update(dict.fromkeys(_keys(content), f"file {file}"))
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and "__" in name:
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            _put(data, key, text)
            origins[key] = f"environment {name}"
            try:
                settings_from(data)
            except BadConfig as error:
                raise BadConfig(f"environment {name}: {error}") from error
    for key, (flag, value) in flags.items():
        _put(data, key, value)
        origins[key] = f"flag {flag}"
    return Loaded(settings_from(data), origins)
