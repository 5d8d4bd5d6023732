"""Bearer tokens of the cluster: the API server says whose they are and what their owner may read.

As kube-rbac-proxy does, in the process itself. Results are remembered for a short time; without an
answer of the API server nothing is served.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from agent.access.check_queue import CheckQueue
from agent.access.decision import TokenUser
from agent.access.memory import ExpiringCache, SecretDigest
from agent.clock import SYSTEM_CLOCK, Clock

KNOWN_TOKEN_S = 120.0  # a deleted ServiceAccount's token may be accepted for so long
UNKNOWN_TOKEN_S = 30.0
ALLOWED_S = 300.0
DENIED_S = 30.0
MAX_REMEMBERED = 128  # of each kind of result
MAX_TOKEN_CHARACTERS = 8192

REVIEWS_PER_S = 5.0
BURST_REVIEWS = 20.0
RUNNING_REVIEWS = 2  # the agent's own requests to the API server must not wait for them
WAIT_S = 5.0


class AccessReviewer(Protocol):
    """Asks the API server; `agent.kube.access_reviews` implements it."""

    async def review_token(self, token: str) -> TokenUser | None:
        """Return the owner of a token, `None` if it is not valid; raise `CheckFailed`."""
        ...

    async def review_access(self, user: TokenUser, path: str) -> bool:
        """Return whether a user may read a path; raise `CheckFailed`."""
        ...


class TokenVerdict(msgspec.Struct, frozen=True):
    """What the API server says of a token."""

    user: TokenUser | None  # None: not valid
    is_allowed: bool = False


def parse_bearer(authorization: str) -> str | None:
    """Return the token of a header; `None` if it has none."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
        return None
    return token if token.isascii() and token.isprintable() and " " not in token else None


class TokenAuthenticator:
    """Checks tokens with an `AccessReviewer`. Belongs to the loop thread."""

    def __init__(self, reviewer: AccessReviewer, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviewer = reviewer
        self._digest = SecretDigest()

        def cache(lifetime_s: float) -> ExpiringCache[object, object]:
            return ExpiringCache(clock, lifetime_s=lifetime_s, limit=MAX_REMEMBERED)

        # valid and invalid ones apart: invented tokens must not displace a scraper's
        self._users: ExpiringCache[object, object] = cache(KNOWN_TOKEN_S)
        self._unknown = cache(UNKNOWN_TOKEN_S)
        self._allowed = cache(ALLOWED_S)
        self._denied = cache(DENIED_S)
        self._queue = CheckQueue(
            refill_per_s=REVIEWS_PER_S,
            burst=BURST_REVIEWS,
            price=1.0,
            wait_s=WAIT_S,
            running=RUNNING_REVIEWS,
            clock=clock,
        )

    async def verdict(self, token: str, path: str, peer: str) -> TokenVerdict:
        """Return what the API server says; raise `CheckFailed`, `TooManyChecks`."""
        key = self._digest.of(token.encode())
        remembered = self._remembered(key, path)
        if remembered is not None:
            return remembered
        return await self._queue.run(peer, lambda: self._review(token, key, path))

    def _remembered(self, key: bytes, path: str) -> TokenVerdict | None:
        if self._unknown.get(key):
            return TokenVerdict(None)
        user = self._users.get(key)
        if not isinstance(user, TokenUser):
            return None
        if self._allowed.get((user, path)):
            return TokenVerdict(user, is_allowed=True)
        return TokenVerdict(user) if self._denied.get((user, path)) else None

    async def _review(self, token: str, key: bytes, path: str) -> tuple[TokenVerdict, float]:
        """Ask for what is not remembered; each request costs 1."""
        remembered = self._remembered(key, path)  # of a check that was before this one
        if remembered is not None:
            return remembered, 0.0
        cost = 0.0
        user = self._users.get(key)
        if not isinstance(user, TokenUser):
            cost += 1
            user = await self._reviewer.review_token(token)
            if user is None:
                self._unknown.put(key, True)  # noqa: FBT003 - a value
                return TokenVerdict(None), cost
            self._users.put(key, user)
            remembered = self._remembered(key, path)  # what its owner may do, of another token
            if remembered is not None:
                return remembered, cost
        is_allowed = await self._reviewer.review_access(user, path)
        (self._allowed if is_allowed else self._denied).put((user, path), True)  # noqa: FBT003
        return TokenVerdict(user, is_allowed=is_allowed), cost + 1
