"""What a write is aimed at, how it is to be done, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tests.apiserver.schema.kinds import Kind
from tests.apiserver.schema.shape import Shape

Object = dict[str, Any]


class Target(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One object, or one to be, in one served version. `whole` writes spec and status at once."""

    kind: Kind
    group: str
    version: str
    name: str = ""
    namespace: str = ""
    subresource: str = ""
    whole: bool = False

    @property
    def shape(self) -> Shape:
        """Return the structure of this version."""
        return self.kind.shapes[self.version]

    @property
    def api_version(self) -> str:
        """Return what objects of this version carry."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> tuple[str, str]:
        """Return the key in the store."""
        return (self.namespace, self.name)


def _anybody() -> None:
    """Let everybody create."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a write is to be done. `may_create` refuses an apply that would have to create."""

    manager: str
    force: bool = False
    dry_run: bool = False
    field_validation: str = "Warn"
    checked: bool = True
    may_create: Callable[[], None] = _anybody


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a write: the stored object, and which fields of the writer's were dropped."""

    body: Object
    created: bool = False
    changed: bool = True
    dropped: tuple[str, ...] = ()
