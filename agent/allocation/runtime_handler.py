"""The runtime handler of pods without a runtime class, from the runtime's own settings."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Callable, Iterator, Mapping

from agent.allocation.file_stamp import HostFileStamp, read_stamp
from agent.errors import HostFileError
from agent.snapshot.host_files import HostFiles

CONTAINERD_CONFIG, CRIO_CONFIG = "/etc/containerd/config.toml", "/etc/crio/crio.conf"
CRIO_CONFIG_FOLDER = "/etc/crio/crio.conf.d"
MAX_BYTES = 256 * 1024
MAX_FILES = 64  # beside the first
# where the name is, by version of containerd's file: 3, 2, 1
_CONTAINERD_KEYS = (
    ("plugins", "io.containerd.cri.v1.runtime", "containerd", "default_runtime_name"),
    ("plugins", "io.containerd.grpc.v1.cri", "containerd", "default_runtime_name"),
    ("plugins", "cri", "containerd", "default_runtime_name"),
)
_CRIO_KEYS = (("crio", "runtime", "default_runtime"),)

TomlTable = Mapping[str, object]


class RuntimeHandlerReader:
    """Reads settings of containerd or CRI-O, and again when one of their files was written."""

    def __init__(self, host: HostFiles, wall: Callable[[], float]) -> None:
        self._host = host
        self._wall = wall
        self._decoded_files: dict[str, tuple[HostFileStamp, TomlTable]] = {}

    def read(self, runtime: str) -> str:
        """Return the name; empty if nobody says. `runtime` is containerd, cri-o, or unknown."""
        found = ""
        for path, keys in self._files(runtime):
            for key in keys:
                found = _text_at(self._read_toml(path), key) or found
        return found

    def _files(self, runtime: str) -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
        """Yield the files in the order in which later ones win, with where the name is in them."""
        if runtime != "cri-o" and self._host.exists(CONTAINERD_CONFIG):
            yield CONTAINERD_CONFIG, _CONTAINERD_KEYS
            yield from ((path, _CONTAINERD_KEYS) for path in self._imports())
        elif runtime != "containerd":
            yield CRIO_CONFIG, _CRIO_KEYS
            for name in self._names(CRIO_CONFIG_FOLDER)[:MAX_FILES]:
                yield f"{CRIO_CONFIG_FOLDER}/{name}", _CRIO_KEYS

    def _imports(self) -> list[str]:
        listed = self._read_toml(CONTAINERD_CONFIG).get("imports")
        found: list[str] = []
        for pattern in listed[:MAX_FILES] if isinstance(listed, list) else ():
            if not isinstance(pattern, str) or not pattern.startswith("/") or "/../" in pattern:
                continue
            folder, _, name = pattern.rpartition("/")
            named = fnmatch.filter(self._names(folder or "/"), name)
            found += [f"{folder}/{entry}" for entry in named]
        return found[:MAX_FILES]

    def _names(self, folder: str) -> tuple[str, ...]:
        try:
            return self._host.names(folder)
        except HostFileError:
            return ()

    def _read_toml(self, path: str) -> TomlTable:
        now = read_stamp(self._host, path, self._wall())
        known = self._decoded_files.get(path)
        if known is None or known[0] != now:
            known = self._decoded_files[path] = now, self._decode(path)
        return known[1]

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
