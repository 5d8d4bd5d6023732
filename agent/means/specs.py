"""CDI specs of the host: each file is decoded when it is new, and again when it was written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from agent.errors import AgentError, HostFileError, ParseError
from agent.host.files import HostFiles
from agent.means.stamps import Stamp, stamp
from agent.model.grant.host import CdiSpec
from plugins.injection.cdi import decode_spec

FOLDERS = ("/etc/cdi", "/var/run/cdi")  # in the order in which runtimes read them
ENDINGS = (".json", ".yaml")  # all that runtimes read
MAX_FILES = 256  # of one folder
MAX_BYTES = 1 << 20
MAX_DEPTH = 32  # the C loader calls itself for each level, and has no limit of its own
UNREADABLE = "CdiSpecUnreadable"

Problem = tuple[str, str]


class UnfitSpec(AgentError):
    """A file that is too large, too deep, or neither YAML nor JSON."""


class SpecReader:
    """All specs of one host."""

    def __init__(self, host: HostFiles, wall: Callable[[], float]) -> None:
        self._host = host
        self._wall = wall
        self._known: dict[str, tuple[Stamp, CdiSpec | None, str]] = {}

    def read(self) -> tuple[tuple[CdiSpec, ...], tuple[Problem, ...]]:
        """Return the specs in the order of their folders and names, and what is wrong with others.

        A file that cannot be used costs itself only.
        """
        before, self._known = self._known, {}
        problems: list[Problem] = []
        for path in self._paths(problems):
            now = stamp(self._host, path, self._wall())
            known = before.get(path)
            self._known[path] = known if known and known[0] == now else (now, *self._decode(path))
        problems += [(UNREADABLE, why) for _, _, why in self._known.values() if why]
        return tuple(spec for _, spec, _ in self._known.values() if spec), tuple(problems)

    def _paths(self, problems: list[Problem]) -> Iterator[str]:
        for folder in FOLDERS:
            try:
                names = [name for name in self._host.names(folder) if name.endswith(ENDINGS)]
            except HostFileError as error:
                problems.append((UNREADABLE, str(error)))
                continue
            yield from (f"{folder}/{name}" for name in names[:MAX_FILES])

    def _decode(self, path: str) -> tuple[CdiSpec | None, str]:
        try:
            data = self._host.read(path, MAX_BYTES + 1)
            return decode_spec(path, plain(data)), ""
        except (HostFileError, ParseError, UnfitSpec) as error:
            return None, f"{path}: {error}"[:300]


def plain(data: bytes) -> object:
    """Return the data of YAML or JSON; raise `UnfitSpec`.

    Aliases are refused: no spec needs them, and a few lines of them stand for gigabytes.
    """
    if len(data) > MAX_BYTES:
        raise UnfitSpec(f"larger than {MAX_BYTES} bytes")
    try:
        if data.lstrip()[:1] == b"{":
            return json.loads(data)
    except RecursionError as error:
        raise UnfitSpec("too deep") from error
    except ValueError:
        pass  # flow YAML looks the same
    return _yaml(data)


def _yaml(data: bytes) -> object:
    import yaml  # noqa: PLC0415 - 15 ms that a host without specs need not pay

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(data, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                raise UnfitSpec("too deep, or with aliases")
        found: object = yaml.load(data, Loader=loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnfitSpec(f"no YAML: {str(error)[:80]}") from error
    return found
