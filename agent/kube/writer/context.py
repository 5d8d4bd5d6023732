"""What all writers work with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from agent.clock import Clock
from agent.kube.api import ApiClient
from agent.kube.flow_control import Backoff
from agent.messages import MessageQueue


class WriterTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How often an object is looked at, and when another writer counts as gone."""

    resync_s: float = 60.0  # between reads of an object that no watch reports; about
    watched_resync_s: float = 3600.0  # of one that a watch reports, in case the watch is wrong
    takeover_s: float = 300.0  # 0: nobody's fields are ever taken
    slow_s: float = 60.0  # between tries where nothing will change soon: no CRD, no right
    absent_s: float = 300.0  # without a CRD, if a watch reports when it is installed
    deadline_s: float = 10.0  # of one call


class WriterContext(msgspec.Struct, frozen=True, kw_only=True):
    """The API server, time and chance, and who is told."""

    api: ApiClient
    clock: Clock
    node_uid: Callable[[], str]  # of the Node object; empty while it is not known
    messages: MessageQueue  # takes events for people
    # by kind: a watch reports each change of the node's object, so that it need not be read again
    is_watched: Callable[[str], bool] = lambda _kind: False
    timing: WriterTiming = WriterTiming()
    backoff: Backoff = Backoff()
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def jitter(self, seconds: float) -> float:
        """Return a time a tenth more or less, so that nodes do not call in step."""
        return seconds * self.uniform(0.9, 1.1)


class WriterPause(msgspec.Struct, frozen=True):
    """How long nothing is done; `wakes`: new content ends it."""

    seconds: float
    ends_on_content: bool = True
