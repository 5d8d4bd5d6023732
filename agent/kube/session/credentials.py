"""What goes into the Authorization header, and when it is read again."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

from agent.clock import Clock
from agent.kube.errors import Unauthorized

REREAD_S = 60.0  # the kubelet renews a projected token at four fifths of its life, at least 10 min
MAX_TOKEN_BYTES = 64 << 10


class Credentials(Protocol):
    """Who we are. Belongs to the loop thread; shared by all sessions of one account."""

    @property
    def read_errors(self) -> int:
        """Count the attempts to read or renew them that failed."""
        ...

    @property
    def problem(self) -> str:
        """Say why the last attempt failed; empty when it did not."""
        ...

    async def authorization(self) -> str | None:
        """Return the header's value; `None`: this account needs none.

        Raise `Unauthorized` when there should be one and never was.
        """
        ...

    def refused(self) -> None:
        """Read or renew them at the next call, however young: a server answered 401."""
        ...


class TokenFile:
    """A bearer token in a file that somebody else renews, as the kubelet does by a symlink.

    Read at most once a minute, and at once after a 401. What cannot be read, is empty or is no
    token leaves the one before in use. The file of a pod lies in memory, so it is read here.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        """Take the path; nothing is read yet."""
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_s: float | None = None
        self.read_errors = 0
        self.problem = ""

    async def authorization(self) -> str | None:
        """Return `Bearer` and the token; raise `Unauthorized` when there was none ever."""
        now_s = self._clock.monotonic()
        if self._read_s is None or not self._token or now_s - self._read_s >= REREAD_S:
            self._read_s = now_s
            self._read()
        if not self._token:
            raise Unauthorized(
                self._path,
                f"no token: {self.problem}; is a ServiceAccount token mounted there?",
            )
        return f"Bearer {self._token}"

    def refused(self) -> None:
        """Read the file again at the next call."""
        self._read_s = None

    def _read(self) -> None:
        try:
            with Path(self._path).open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            self._failed(errno.errorcode.get(error.errno or 0, os.strerror(error.errno or 0)))
            return
        problem = _what_is_wrong(token)
        if problem:
            self._failed(problem)
            return
        self._token = token.strip().decode("ascii")
        self.problem = ""

    def _failed(self, problem: str) -> None:
        self.read_errors += 1
        self.problem = f"{self._path}: {problem}"


def _what_is_wrong(token: bytes) -> str:
    """Say why this cannot be a header's value; never repeat it."""
    if len(token) > MAX_TOKEN_BYTES:
        return f"more than {MAX_TOKEN_BYTES} bytes"
    text = token.strip()
    if not text:
        return "empty"
    if any(byte <= 32 or byte >= 127 for byte in text):
        return "not a token: blanks or unprintable bytes inside"
    return ""
