"""The bearer token of the agent, and the TLS context with the authorities that it believes.

Whom we believe to be the server, and the certificate that says who we are.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from agent.clock import Clock
from agent.kube.errors import Unauthorized, Unreachable

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

    def expire(self) -> None:
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

    def expire(self) -> None:
        """Read the file again at the next call."""
        self._read_s = None

    def _read(self) -> None:
        try:
            with Path(self._path).open("rb") as file:
                token = file.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            self._failed(errno.errorcode.get(error.errno or 0, os.strerror(error.errno or 0)))
            return
        problem = _token_problem(token)
        if problem:
            self._failed(problem)
            return
        self._token = token.strip().decode("ascii")
        self.problem = ""

    def _failed(self, problem: str) -> None:
        self.read_errors += 1
        self.problem = f"{self._path}: {problem}"


def _token_problem(token: bytes) -> str:
    """Say why this cannot be a header's value; never repeat it."""
    if len(token) > MAX_TOKEN_BYTES:
        return f"more than {MAX_TOKEN_BYTES} bytes"
    text = token.strip()
    if not text:
        return "empty"
    if any(byte <= 32 or byte >= 127 for byte in text):
        return "not a token: blanks or unprintable bytes inside"
    return ""


RECHECK_FILES_S = 60.0

MAX_FILE_BYTES = 1 << 20

FileSignatures = tuple[tuple[int, int, int], ...]


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Where the certificates are. Empty `ca_file`: the authorities of this machine."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""  # empty: in `cert_file`
    insecure: bool = False  # believe anybody

    def __str__(self) -> str:
        """Say who must have signed the server's certificate."""
        return f"the CA in {self.ca_file}" if self.ca_file else "an authority of this machine"


class TlsContextCache:
    """Keeps one TLS context, made anew when a file changes; new connections use the new one.

    Files are looked at once a minute, and at once after a certificate was not believed. When the
    new ones cannot be used, the context before stays. Belongs to the loop thread; files are read
    in another.
    """

    def __init__(self, files: Callable[[], TlsFiles], clock: Clock) -> None:
        """Take who knows the files; they may be others later, as a plug-in makes them."""
        self._files = files
        self._clock = clock
        self._loading = asyncio.Lock()
        self._context: ssl.SSLContext | None = None
        self._made_of: tuple[TlsFiles, FileSignatures] | None = None
        self._looked_s: float | None = None
        self.read_errors = 0
        self.problem = ""

    @property
    def authority(self) -> str:
        """Say who must have signed the server's certificate."""
        return str(self._files())

    def expire(self) -> None:
        """Look at the files at the next call: a certificate was not believed."""
        self._looked_s = None

    async def context(self) -> ssl.SSLContext:
        """Return the context to connect with; raise `Unreachable` when there was never any."""
        async with self._loading:
            if self._is_due():
                self._looked_s = self._clock.monotonic()
                await self._look()
        if self._context is None:
            raise Unreachable("TLS", f"{self.problem}; without it no server can be believed")
        return self._context

    def _is_due(self) -> bool:
        if self._looked_s is None or self._context is None or self._made_of is None:
            return True
        is_old = self._clock.monotonic() - self._looked_s >= RECHECK_FILES_S
        return is_old or self._made_of[0] != self._files()

    async def _look(self) -> None:
        files = self._files()
        try:
            made_of = files, _file_signatures(files)
            if made_of == self._made_of:
                return
            event_loop = asyncio.get_running_loop()
            context = await event_loop.run_in_executor(None, tls_context, files)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.read_errors += 1
            self.problem = f"{_file_names(files)}: {_error_reason(error)}"
            return
        self._context, self._made_of, self.problem = context, made_of, ""


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for a client, TLS 1.2 at least; raise `OSError` or `ValueError`.

    Takes 1 ms with the few certificates of a cluster, 40 ms with the authorities of a machine.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif files.ca_file:
        context.load_verify_locations(cafile=files.ca_file)
    else:
        context.load_default_certs()
    if files.cert_file:
        # an empty password: a key that is locked is an error, not a question at the terminal
        context.load_cert_chain(files.cert_file, files.key_file or None, password="")
    return context


def _file_signatures(files: TlsFiles) -> FileSignatures:
    """Tell one content of the files from another; a symlink is followed, as the kubelet's are."""
    found = []
    for path in (files.ca_file, files.cert_file, files.key_file):
        if path:
            stat = os.stat(path)
            if stat.st_size > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return tuple(found)


def _file_names(files: TlsFiles) -> str:
    return ", ".join(filter(None, (files.ca_file, files.cert_file, files.key_file))) or "the system"


def _error_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate that can be used ({error.reason or 'broken'})"
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else "cannot be read"
    return str(error)
