"""What all writers work with."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from agent.clock import Clock
from agent.kube.backoff import Backoff
from agent.kube.base import Api
from agent.publish.cluster.state import Pace


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The API server, time and chance, and who is told."""

    api: Api
    clock: Clock
    node_uid: Callable[[], str]  # of the Node object; empty while it is not known
    tell: Callable[[str, str], None]  # (reason in CamelCase, message), on the loop thread
    # by kind: a watch reports each change of the node's object, so that it need not be read again
    is_watched: Callable[[str], bool] = lambda _kind: False
    pace: Pace = Pace()
    backoff: Backoff = Backoff()
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def about(self, seconds: float) -> float:
        """Return a time a tenth more or less, so that nodes do not call in step."""
        return seconds * self.uniform(0.9, 1.1)


class Pause(msgspec.Struct, frozen=True):
    """How long nothing is done; `wakes`: new content ends it."""

    seconds: float
    wakes: bool = True
