"""Results of checks that are valid for a limited time, in a limited number."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from agent.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """A cache whose entries expire; the entry that was used least recently makes room."""

    def __init__(self, clock: Clock, *, lifetime_s: float, limit: int) -> None:
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._limit = limit
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value; `None` without a valid entry."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        until_s, value = entry
        if self._clock.monotonic() >= until_s:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value for the lifetime of this cache."""
        self._entries[key] = (self._clock.monotonic() + self._lifetime_s, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


class SecretDigest:
    """Digests of secrets under a key of this process: no cache holds a secret itself."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def of(self, *parts: bytes) -> bytes:
        """Return the digest of these parts, which differs for parts that are cut elsewhere."""
        digest = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()
