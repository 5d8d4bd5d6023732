"""What a publisher is: a pure function from the snapshot to the objects it wants to exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from agent.model.snapshot import NodeSnapshot

Json = Mapping[str, object]
# (what the server has, what we want) -> what we write, where others write into the same field
Merge = Callable[[Json, Json], Json]


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    """One object as it should be. `body` is the whole object as JSON data, keys as on the wire.

    An `absent` one is removed if it is ours; its body has no more than a name.
    """

    file_name: str  # in standalone mode: device.yaml
    api_version: str
    kind: str
    name: str
    body: Json
    status_only: bool = False  # only `status` is ours to write (NodeMetric)
    owned_annotations: tuple[str, ...] = ()  # keys that are removed when `body` lacks them
    owned_labels: tuple[str, ...] = ()
    absent: bool = False
    partial: bool = False  # more will be known in a moment, for which making the object may wait
    merge: Merge | None = None


class Publisher(Protocol):
    """Equal snapshots give equal objects; nothing is read, written or remembered."""

    @property
    def name(self) -> str:
        """Name the publisher in metrics, checks and logs."""
        ...

    @property
    def interval_s(self) -> float:
        """Return the seconds between two looks for a change."""
        ...

    def render(self, snapshot: NodeSnapshot, now_s: float) -> tuple[Desired, ...]:
        """Return the objects. `now_s` is the wall clock, for time stamps that must move."""
        ...
