"""Basic authentication against bcrypt hashes, as Prometheus' own servers do it.

A hash takes tens of milliseconds on purpose. It is computed on another thread, for one client at a
time, and only for so much of the time that guesses cost a few percent of one core. A user name and
password that were right are remembered, so a scraper pays once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import time
from collections.abc import Mapping

import bcrypt

from agent.access.check_queue import CheckQueue
from agent.access.memory import ExpiringCache, SecretDigest
from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import BadConfig

MAX_COST = 14  # takes about a second: a scraper does not wait for more
BCRYPT_BYTES = 72  # bcrypt ignores the rest of a password, and the library refuses it
HASH = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")

CPU_SHARE = 0.05  # of one core, for passwords that are not remembered
BURST_S = 1.0  # of CPU time at once: several scrapers start together
USUAL_COST_S = 0.05  # of a hash of cost 10; each one pays what it really took
WAIT_S = 8.0  # Prometheus stops waiting after ten
REMEMBERED_S = 3600.0
MAX_REMEMBERED = 64
WRONG_S = 60.0  # a scraper with a wrong password sends the same one again and again
MAX_WRONG = 256


def hash_cost(text: str) -> int | None:
    """Return the cost of a bcrypt hash; `None` if the text is none."""
    parts = HASH.fullmatch(text)
    return int(parts[1]) if parts is not None else None


def check_users(users: Mapping[str, str], where: str) -> None:
    """Check the hashes of all users; raise `BadConfig` that names the user and never the hash."""
    for name, text in users.items():
        cost = hash_cost(text)
        if cost is None:
            raise BadConfig(f"{where}.{name}: must be a bcrypt hash, as `htpasswd -nBC 10` prints")
        if not 4 <= cost <= MAX_COST:
            raise BadConfig(f"{where}.{name}: bcrypt cost {cost} is not in 4 to {MAX_COST}")


def parse_basic(authorization: str) -> tuple[bytes, bytes] | None:
    """Return user name and password of a header; `None` if it has none."""
    scheme, _, text = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    name, colon, password = decoded.partition(b":")
    return (name, password) if colon else None


class BasicAuthenticator:
    """Checks user names and passwords. Belongs to the loop thread."""

    def __init__(self, users: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        """`users` has the bcrypt hash of each user name."""
        self._users = {name.encode(): text.encode() for name, text in users.items()}
        cost = max((hash_cost(text) or 4 for text in users.values()), default=4)
        # for names that do not exist, so that they take as long as those that do
        self._nobody = f"$2b${cost:02d}${'.' * 53}".encode()
        self._digest = SecretDigest()
        self._right: ExpiringCache[bytes, bool] = ExpiringCache(
            clock, lifetime_s=REMEMBERED_S, limit=MAX_REMEMBERED
        )
        self._wrong: ExpiringCache[bytes, bool] = ExpiringCache(
            clock, lifetime_s=WRONG_S, limit=MAX_WRONG
        )
        self._queue = CheckQueue(
            refill_per_s=CPU_SHARE,
            burst=BURST_S,
            price=USUAL_COST_S,
            wait_s=WAIT_S,
            clock=clock,
        )

    async def is_right(self, name: bytes, password: bytes, peer: str) -> bool:
        """Return whether the password is the user's; raise `TooManyChecks`."""
        key = self._digest.of(name, password)
        if self._right.get(key):
            return True
        if self._wrong.get(key):
            return False
        return await self._queue.run(peer, lambda: self._check(name, password, key))

    async def _check(self, name: bytes, password: bytes, key: bytes) -> tuple[bool, float]:
        if self._right.get(key):  # while this check waited for its turn
            return True, 0.0
        hashed = self._users.get(name)
        event_loop = asyncio.get_running_loop()
        is_equal, cost_s = await event_loop.run_in_executor(
            None, _compare, password, hashed or self._nobody
        )
        is_right = is_equal and hashed is not None
        (self._right if is_right else self._wrong).put(key, True)  # noqa: FBT003 - a value
        return is_right, cost_s


def _compare(password: bytes, hashed: bytes) -> tuple[bool, float]:
    """Return whether a password has this hash, and the CPU time of the comparison."""
    begun_s = time.thread_time()
    try:
        is_equal = bcrypt.checkpw(password[:BCRYPT_BYTES], hashed)
    except ValueError:  # a NUL byte in the password
        is_equal = False
    return is_equal, time.thread_time() - begun_s
