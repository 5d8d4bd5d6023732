"""Loads settings from file, environment and flags, with the origin of each value."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agent.config.decoder import decode_section
from agent.config.settings import Settings, settings_type
from agent.errors import BadConfig
from agent.snapshot.vendor import VendorDescription
from agent.wire_formats.plain_yaml import decode_settings_yaml


def decode_settings(data: object, vendors: Iterable[VendorDescription] = ()) -> Settings:
    """Decode all settings from plain data; raises `BadConfig`.

    `discovery` has a section and a switch for each of `vendors`.
    """
    result = decode_section(settings_type(tuple(vendors)), data)
    assert isinstance(result, Settings)  # noqa: S101 - of the class just given
    return result


ENVIRONMENT_PREFIX = "XPU_AGENT_"
MAX_FILE_BYTES = 1 << 20
NAME_A_FILE = "name a settings file that this user can read"
DEFAULT_FILE = Path("/etc/xpu-agent/config.yaml")


class LoadedSettings(msgspec.Struct, frozen=True):
    """Settings, and the origin of each value that is not a default."""

    settings: Settings
    origins: Mapping[str, str]  # "publish.pcie_scope" -> "file x.yaml", "environment X", "flag --x"


def read_settings_file(path: Path) -> Mapping[str, object]:
    """Return a settings file's content; raise `BadConfig` with file and line."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}; {NAME_A_FILE}") from error
    if len(text) > MAX_FILE_BYTES:
        raise BadConfig(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    data = decode_settings_yaml(text, str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise BadConfig(f"{path}: must be a mapping of sections")
    return data


def choose_file(path: str | None, default: Path = DEFAULT_FILE) -> Path | None:
    """Return the file of `--config`, else the node's own if there is one."""
    if path:
        return Path(path)
    return default if os.path.exists(default) else None


def _set_value(data: dict[str, Any], key: str, value: object) -> None:
    *sections, name = key.split(".")
    for part in sections:
        inner = data.get(part)
        data[part] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[part]
    data[name] = value


def _keys(data: object, prefix: str = "") -> Iterator[str]:
    if isinstance(data, Mapping) and data:
        for name, value in data.items():
            yield from _keys(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix


def load_settings(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, tuple[str, object]],
    vendors: Iterable[VendorDescription],
) -> LoadedSettings:
    """Merge the sources; raise `BadConfig` that names the key and the source.

    `flags` maps a dotted key to the flag's name and its value. Environment variables that start
    with `XPU_AGENT_` and contain `__` set a value: `XPU_AGENT_PUBLISH__PCIE_SCOPE=switch`.
    """
    vendors = tuple(vendors)
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        content = read_settings_file(file)
        data = dict(content)
        try:
            decode_settings(data, vendors)
        except BadConfig as error:
            raise BadConfig(f"{file}: {error}") from error
        origins.update(dict.fromkeys(_keys(content), f"file {file}"))
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            _set_value(data, key, text)
            origins[key] = f"environment {name}"
            try:
                decode_settings(data, vendors)
            except BadConfig as error:
                raise BadConfig(f"environment {name}: {error}") from error
    for key, (flag, value) in flags.items():
        _set_value(data, key, value)
        origins[key] = f"flag {flag}"
    return LoadedSettings(decode_settings(data, vendors), origins)
