"""Objects as files, for `run --standalone`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import yaml

from agent import durable
from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import PublishError
from agent.objects.yaml_text import to_yaml
from agent.snapshot.publications import DesiredObject
from agent.wire_formats.device_object import keep_health_times, keep_transition_times

MAX_BYTES = 8 << 20  # of one object; an API server accepts less than 2 MiB
MODE = 0o644
_NAME = re.compile(r"[a-z0-9]+([-.][a-z0-9]+)*")
# errors of PyYAML for unusual documents
_PARSE_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)

ObjectBody = dict[str, object]
FileStamp = tuple[int, int, int]  # inode, size, modification time


class SinkResult(msgspec.Struct, frozen=True):
    """Names of the files that one run wrote, and of those whose content was already equal."""

    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


class FileSink:
    """Keeps one file per object in one folder; a file is replaced as a whole after a change.

    If the process dies, each file is the old one or the new one. A file that another program
    changes or removes is written again. Two processes must not use one folder.
    """

    def __init__(self, folder: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.folder = folder
        self._clock = clock
        self.errors: Mapping[str, str] = {}  # by file, of the last run; empty without errors
        self._cached: dict[str, tuple[FileStamp, ObjectBody]] = {}
        self._cleaned: set[str] = set()

    def apply(self, desired: Iterable[DesiredObject]) -> SinkResult:
        """Write the desired objects that differ.

        If one file fails, the others are still written. Then one `PublishError` reports all
        failures, and `errors` has them until a run succeeds.
        """
        written: list[str] = []
        unchanged: list[str] = []
        failures: list[tuple[str, PublishError]] = []
        for item in desired:
            _check_file_name(item.file_name)
            try:
                (written if self._apply_one(item) else unchanged).append(item.file_name)
            except PublishError as error:
                failures.append((item.file_name, error))
        self.errors = {name: str(error) for name, error in failures}
        if failures:
            first = failures[0][1]
            if len(failures) == 1:
                raise first
            detail = f"{len(failures)} objects could not be written, the first: {first}"
            raise PublishError(self.folder, detail, first.errno) from first
        return SinkResult(tuple(written), tuple(unchanged))

    def where(self, desired: DesiredObject) -> str:
        """Return the path of an object's file."""
        return str(Path(self.folder, desired.file_name))

    def _apply_one(self, item: DesiredObject) -> bool:
        path = Path(self.where(item))
        try:
            if item.file_name not in self._cleaned:
                remove_temporaries(self.folder, (item.file_name,))
                self._cleaned.add(item.file_name)
            previous = self._previous(path)
            dated = keep_health_times(
                previous, keep_transition_times(previous, item.body, self._clock.wall())
            )
            body = _plain_mapping(dated)
            if body == previous:
                return False
            os.makedirs(self.folder, exist_ok=True)
            durable.replace_file(str(path), to_yaml(body), MODE)
            self._cached[item.file_name] = (_file_stamp(path), body)
        except OSError as error:
            detail = f"{error.strerror}; make the folder writable or choose another with --out"
            raise PublishError(str(path), detail, error.errno or 0) from error
        return True

    def _previous(self, path: Path) -> ObjectBody | None:
        """Return the object in the file; `None` without a file, or if its content is invalid."""
        try:
            stamp = _file_stamp(path)
        except FileNotFoundError:
            return None
        cached = self._cached.get(path.name)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        body = _read(path) if stamp[1] <= MAX_BYTES else None
        if body is not None:
            self._cached[path.name] = (stamp, body)
        return body


def read_object(path: Path) -> ObjectBody | None:
    """Return the object in a file; `None` if the file is absent or unreadable."""
    try:
        return _read(path) if _file_stamp(path)[1] <= MAX_BYTES else None
    except OSError:
        return None


def _read(path: Path) -> ObjectBody | None:
    try:
        body = _load(durable.read_file(str(path), MAX_BYTES))
    except (*_PARSE_ERRORS, durable.NotRegularFileError):
        return None
    return body if isinstance(body, dict) else None


def remove_temporaries(folder: str, names: Iterable[str]) -> None:
    """Remove temporary files that a killed process left beside files of these names."""
    for name in names:
        durable.remove(durable.temporary_path(str(Path(folder, name))))


def _load(data: bytes) -> object:
    """Parse YAML; an invalid document raises one of `_PARSE_ERRORS`."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may come without libyaml
    try:
        return yaml.load(data, Loader=loader)  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _file_stamp(path: Path) -> FileStamp:
    info = os.stat(path)
    return info.st_ino, info.st_size, info.st_mtime_ns


def _check_file_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a plain file name: {name!r}")


def _plain_mapping(body: Mapping[str, object]) -> ObjectBody:
    return {_text(key): _plain(value) for key, value in body.items()}


def _plain(value: object) -> object:
    """Return JSON data made only of dict, list and scalars, as a YAML reader returns it."""
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
