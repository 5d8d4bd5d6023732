"""How the server misbehaves on command: which requests a fault strikes, and what it does."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from tests.apiserver.log import Logged


class Fault(msgspec.Struct, kw_only=True, eq=False, omit_defaults=True):
    """One rule. Empty conditions hold for every request; all that are given must hold.

    A rule that strikes and has only delays, headers or an `edit` lets the request be handled; at
    most one other action should be given.
    """

    name: str = ""
    # which requests
    method: str = ""
    path: str = ""  # a regular expression, searched in the path
    verb: str = ""  # as RBAC names it; "list|watch" and the like
    resource: str = ""
    subresource: str | None = None
    object_name: str = ""
    user_agent: str = ""  # a regular expression, searched
    user: str = ""
    skip: int = 0  # requests that match but are let through first
    times: int = 1  # how many requests are struck; 0: all
    probability: float = 1.0
    seed: int = 0
    # instead of handling it
    status: int = 0  # answer with this status; the words below are its Status
    reason: str = ""
    message: str = ""
    causes: tuple[dict[str, str], ...] = ()
    retry_after_s: float | None = None
    html: bool = False  # the body is a page of some proxy
    raw: str | None = None  # the body, as it is
    content_type: str = "application/json"
    hang: bool = False  # not a byte until the client leaves
    reset: bool = False  # the connection is reset at once
    # around handling it
    delay_s: float = 0.0  # before
    until: threading.Event | None = None  # before: once the test has set it
    after_s: float = 0.0  # handled, but the answer waits
    lose_answer: bool = False  # handled, but the connection is reset instead of an answer
    # the answer
    headers: dict[str, str] = {}
    warning: str = ""  # a Warning header
    date_skew_s: float = 0.0
    cut_after_bytes: int | None = None  # the body ends here, and the connection with it
    cut_by_reset: bool = False
    bytes_per_s: float = 0.0
    edit: Callable[[Any], Any] | None = None  # changes the JSON of an answer or of each event
    # streams of watches: after so many lines, then
    after_lines: int = 0
    stream: str = ""  # a name of serve.breaks.BREAKS, "reset" or "truncate-reset"

    def matches(self, logged: Logged) -> bool:
        """Return whether a request meets all conditions but those that count or roll dice."""
        return (
            (not self.method or self.method == logged.method)
            and (not self.path or re.search(self.path, logged.path) is not None)
            and (not self.verb or logged.verb in self.verb.split("|"))
            and (not self.resource or self.resource == logged.resource)
            and (self.subresource is None or self.subresource == logged.subresource)
            and (not self.object_name or self.object_name == logged.name)
            and (not self.user or self.user == logged.user)
            and (not self.user_agent or re.search(self.user_agent, logged.user_agent) is not None)
        )


class Faults:
    """The faults in force. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[int, tuple[Fault, random.Random]] = {}
        self._seen: dict[int, int] = {}
        self._hits: dict[int, int] = {}

    def add(self, fault: Fault) -> Fault:
        """Put a fault in force, after those that are."""
        with self._lock:
            self._faults[id(fault)] = (fault, random.Random(fault.seed))
            self._seen[id(fault)] = self._hits[id(fault)] = 0
        return fault

    def remove(self, fault: Fault) -> None:
        """End a fault; one that is not in force is no error."""
        with self._lock:
            self._faults.pop(id(fault), None)

    def clear(self) -> None:
        """End all faults."""
        with self._lock:
            self._faults.clear()

    def hits(self, fault: Fault) -> int:
        """Return how many requests a fault struck."""
        with self._lock:
            return self._hits.get(id(fault), 0)

    def strike(self, logged: Logged) -> Fault | None:
        """Return the first fault that strikes this request, if any."""
        with self._lock:
            for key, (fault, dice) in self._faults.items():
                spent = fault.times and self._hits[key] >= fault.times
                if spent or not fault.matches(logged):
                    continue
                self._seen[key] += 1
                if self._seen[key] <= fault.skip or dice.random() >= fault.probability:
                    continue
                self._hits[key] += 1
                return fault
        return None
