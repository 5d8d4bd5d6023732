"""The dependencies and intervals that all writers share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.flow_control import Backoff
from agent.kube.watch.reflector import Reflector, is_watched
from agent.messages import MessageQueue
from agent.snapshot.node import SnapshotStore


class WriterTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How often an object is read, and after how long another writer counts as gone."""

    resync_s: float = 60.0  # about; between reads of an object without a watch
    watched_resync_s: float = (
        3600.0  # between reads of a watched object, in case the watch is wrong
    )
    takeover_s: float = 300.0  # 0: no writer's fields are ever taken over
    slow_s: float = 60.0  # between tries without a CRD or a permission
    absent_s: float = 300.0  # between tries without a CRD, if a watch reports its installation
    deadline_s: float = 10.0  # of one call


class WriterContext(msgspec.Struct, frozen=True, kw_only=True):
    """The API server, clocks and randomness, and the queue for messages."""

    api: ApiClient
    clock: Clock
    store: SnapshotStore  # has the uid of the Node object
    messages: MessageQueue  # receives events for people
    # those of the node's objects; an object that is watched is seldom read
    watches: Mapping[str, Reflector[Any, Any]] = msgspec.field(default_factory=dict)
    timing: WriterTiming = WriterTiming()
    backoff: Backoff = Backoff()
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def is_watched(self, kind: str) -> bool:
        """Return whether a watch reports each change of the node's object of a kind."""
        return is_watched(self.watches, kind)

    def jitter(self, seconds: float) -> float:
        """Return a time up to a tenth shorter or longer, so that nodes do not call in step."""
        return seconds * self.uniform(0.9, 1.1)


class WriterPause(msgspec.Struct, frozen=True):
    """How long the writer waits; `ends_on_content`: new content ends the wait."""

    seconds: float
    ends_on_content: bool = True
