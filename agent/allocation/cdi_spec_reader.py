"""CDI specs of the host. Each file is decoded when it is new, and again after a change."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agent.allocation.file_stamp import HostFileStamp, read_stamp
from agent.clock import Clock
from agent.errors import AgentError, HostFileError, ParseError
from agent.snapshot.host_devices import CdiSpec
from agent.snapshot.host_files import HostFiles
from agent.wire_formats.cdi_specs import decode_spec
from agent.wire_formats.plain_yaml import decode_yaml

CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")  # in the order in which runtimes read them
SPEC_SUFFIXES = (".json", ".yaml")  # all that runtimes read
MAX_SPEC_FILES = 256  # of one folder
MAX_SPEC_BYTES = 1 << 20
MAX_DEPTH = 32  # libyaml recurses for each level and has no limit itself
CDI_SPEC_UNREADABLE = "CdiSpecUnreadable"

CdiSpecProblem = tuple[str, str]


class CdiSpecError(AgentError):
    """A file that is too large, too deep, or neither YAML nor JSON."""


class CdiSpecReader:
    """All specs of one host."""

    def __init__(self, host: HostFiles, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._by_path: dict[str, tuple[HostFileStamp, CdiSpec | None, str]] = {}

    def read(self) -> tuple[tuple[CdiSpec, ...], tuple[CdiSpecProblem, ...]]:
        """Return the specs in the order of folders and names, and the problems of other files.

        An invalid file does not affect the others.
        """
        before, self._by_path = self._by_path, {}
        problems: list[CdiSpecProblem] = []
        for path in self._paths(problems):
            stamp = read_stamp(self._host, path, self._clock.wall())
            cached = before.get(path)
            self._by_path[path] = (
                cached if cached and cached[0] == stamp else (stamp, *self._decode(path))
            )
        problems += [
            (CDI_SPEC_UNREADABLE, problem) for _, _, problem in self._by_path.values() if problem
        ]
        return tuple(spec for _, spec, _ in self._by_path.values() if spec), tuple(problems)

    def _paths(self, problems: list[CdiSpecProblem]) -> Iterator[str]:
        for folder in CDI_FOLDERS:
            try:
                names = [name for name in self._host.names(folder) if name.endswith(SPEC_SUFFIXES)]
            except HostFileError as error:
                problems.append((CDI_SPEC_UNREADABLE, str(error)))
                continue
            yield from (f"{folder}/{name}" for name in names[:MAX_SPEC_FILES])

    def _decode(self, path: str) -> tuple[CdiSpec | None, str]:
        try:
            data = self._host.read(path, MAX_SPEC_BYTES + 1)
            return decode_spec(path, decode_plain_data(data)), ""
        except (HostFileError, ParseError, CdiSpecError) as error:
            return None, f"{path}: {error}"[:300]


def decode_plain_data(data: bytes) -> object:
    """Return the data of YAML or JSON; raise `CdiSpecError`.

    Aliases are refused: no spec needs them, and a few lines of them can stand for gigabytes.
    """
    if len(data) > MAX_SPEC_BYTES:
        raise CdiSpecError(f"larger than {MAX_SPEC_BYTES} bytes")
    try:
        if data.lstrip()[:1] == b"{":
            return json.loads(data)
    except RecursionError as error:
        raise CdiSpecError("too deep") from error
    except ValueError:
        pass  # it may be flow-style YAML
    try:
        return decode_yaml(data, MAX_DEPTH)
    except ValueError as error:
        raise CdiSpecError(f"no YAML: {str(error)[:80]}") from error
