"""The default runtime handler, for pods without a runtime class, from the runtime's settings."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Mapping

from agent.allocation.file_stamp import HostFileStamp, read_stamp
from agent.clock import Clock
from agent.errors import HostFileError
from agent.snapshot.host_files import HostFiles

CONTAINERD_CONFIG, CRIO_CONFIG = "/etc/containerd/config.toml", "/etc/crio/crio.conf"
CRIO_CONFIG_FOLDER = "/etc/crio/crio.conf.d"
MAX_BYTES = 256 * 1024
MAX_FILES = 64  # beside the first
# the key of the name in versions 3, 2 and 1 of containerd's file
_CONTAINERD_KEYS = (
    ("plugins", "io.containerd.cri.v1.runtime", "containerd", "default_runtime_name"),
    ("plugins", "io.containerd.grpc.v1.cri", "containerd", "default_runtime_name"),
    ("plugins", "cri", "containerd", "default_runtime_name"),
)
_CRIO_KEYS = (("crio", "runtime", "default_runtime"),)

TomlTable = Mapping[str, object]


class RuntimeHandlerReader:
    """Reads settings of containerd or CRI-O, and again after a change of a file."""

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._decoded_files: dict[str, tuple[HostFileStamp, TomlTable]] = {}

    def read(self, runtime: str) -> str:
        """Return the name; empty if not configured. `runtime` is containerd, cri-o, or unknown."""
        name = ""
        for path, keys in self._files(runtime):
            for key in keys:
                name = _text_at(self._read_toml(path), key) or name
        return name

    def _files(self, runtime: str) -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
        """Yield the files with their keys; later files override earlier ones."""
        if runtime != "cri-o" and self._host.exists(CONTAINERD_CONFIG):
            yield CONTAINERD_CONFIG, _CONTAINERD_KEYS
            yield from ((path, _CONTAINERD_KEYS) for path in self._imports())
        elif runtime != "containerd":
            yield CRIO_CONFIG, _CRIO_KEYS
            for name in self._names(CRIO_CONFIG_FOLDER)[:MAX_FILES]:
                yield f"{CRIO_CONFIG_FOLDER}/{name}", _CRIO_KEYS

    def _imports(self) -> list[str]:
        patterns = self._read_toml(CONTAINERD_CONFIG).get("imports")
        paths: list[str] = []
        for pattern in patterns[:MAX_FILES] if isinstance(patterns, list) else ():
            if not isinstance(pattern, str) or not pattern.startswith("/") or "/../" in pattern:
                continue
            folder, _, name = pattern.rpartition("/")
            matching = fnmatch.filter(self._names(folder or "/"), name)
            paths += [f"{folder}/{entry}" for entry in matching]
        return paths[:MAX_FILES]

    def _names(self, folder: str) -> tuple[str, ...]:
        try:
            return self._host.names(folder)
        except HostFileError:
            return ()

    def _read_toml(self, path: str) -> TomlTable:
        stamp = read_stamp(self._host, path, self._clock.wall())
        cached = self._decoded_files.get(path)
        if cached is None or cached[0] != stamp:
            cached = self._decoded_files[path] = stamp, self._decode(path)
        return cached[1]

    def _decode(self, path: str) -> TomlTable:
        try:
            return tomllib.loads(self._host.read(path, MAX_BYTES).decode())
        except (HostFileError, ValueError, RecursionError):
            return {}


def _text_at(data: TomlTable, key: tuple[str, ...]) -> str:
    value: object = data
    for name in key:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""
