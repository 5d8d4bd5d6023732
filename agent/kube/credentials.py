"""The bearer token of the agent, and the TLS context with the certificate authorities it trusts."""

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
    """The account of the agent. Belongs to the loop thread; sessions of one account share it."""

    @property
    def read_errors(self) -> int:
        """Return the number of failed reads or renewals."""
        ...

    @property
    def problem(self) -> str:
        """Return why the last read failed; empty after a success."""
        ...

    async def authorization(self) -> str | None:
        """Return the header's value; `None` if this account needs none.

        Raise `Unauthorized` if a token is needed and was never read.
        """
        ...

    def expire(self) -> None:
        """Read or renew the credentials at the next call: a server answered 401."""
        ...


class TokenFile:
    """A bearer token in a file that another program renews, as the kubelet does by a symlink.

    The file is read at most once a minute, and at once after a 401. If it is unreadable, empty or
    not a token, the previous token stays in use. The file of a pod is in memory, so the loop thread
    reads it.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        """Take the path; read nothing yet."""
        self._path = path
        self._clock = clock
        self._token = ""
        self._read_s: float | None = None
        self.read_errors = 0
        self.problem = ""

    async def authorization(self) -> str | None:
        """Return `Bearer` and the token; raise `Unauthorized` if no token was ever read."""
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
    """Return why this cannot be a header's value; never include the token."""
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
    """The paths of the certificates. Without `ca_file` the machine's authorities are trusted."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""  # empty: in `cert_file`
    insecure: bool = False  # accept every certificate

    def __str__(self) -> str:
        """Return which authority must have signed the server's certificate."""
        return f"the CA in {self.ca_file}" if self.ca_file else "an authority of this machine"


class TlsContextCache:
    """Caches one TLS context, built again after a change of a file.

    Files are checked once a minute, and at once after an untrusted certificate. If the new files
    cannot be used, the previous context stays. Belongs to the loop thread; another thread reads the
    files.
    """

    def __init__(self, files: Callable[[], TlsFiles], clock: Clock) -> None:
        """`files` returns the current paths; a credential plug-in may change them later."""
        self._files = files
        self._clock = clock
        self._loading = asyncio.Lock()
        self._context: ssl.SSLContext | None = None
        self._source: tuple[TlsFiles, FileSignatures] | None = None
        self._checked_s: float | None = None
        self.read_errors = 0
        self.problem = ""

    @property
    def authority(self) -> str:
        """Return which authority must have signed the server's certificate."""
        return str(self._files())

    def expire(self) -> None:
        """Check the files at the next call: a certificate was not trusted."""
        self._checked_s = None

    async def context(self) -> ssl.SSLContext:
        """Return the context to connect with; raise `Unreachable` if there never was one."""
        async with self._loading:
            if self._is_due():
                self._checked_s = self._clock.monotonic()
                await self._check_files()
        if self._context is None:
            raise Unreachable("TLS", f"{self.problem}; without it no server can be believed")
        return self._context

    def _is_due(self) -> bool:
        if self._checked_s is None or self._context is None or self._source is None:
            return True
        is_old = self._clock.monotonic() - self._checked_s >= RECHECK_FILES_S
        return is_old or self._source[0] != self._files()

    async def _check_files(self) -> None:
        files = self._files()
        try:
            source = files, _file_signatures(files)
            if source == self._source:
                return
            event_loop = asyncio.get_running_loop()
            context = await event_loop.run_in_executor(None, tls_context, files)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            self.read_errors += 1
            self.problem = f"{_file_names(files)}: {_error_reason(error)}"
            return
        self._context, self._source, self.problem = context, source, ""


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for a client, TLS 1.2 at least; raise `OSError` or `ValueError`.

    This takes 1 ms with the few certificates of a cluster, 40 ms with the authorities of a machine.
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
        # an empty password: an encrypted key raises an error instead of a prompt at the terminal
        context.load_cert_chain(files.cert_file, files.key_file or None, password="")
    return context


def _file_signatures(files: TlsFiles) -> FileSignatures:
    """Return a value that differs for changed files; symlinks are followed."""
    signatures = []
    for path in (files.ca_file, files.cert_file, files.key_file):
        if path:
            stat = os.stat(path)
            if stat.st_size > MAX_FILE_BYTES:
                raise ValueError(f"more than {MAX_FILE_BYTES} bytes")
            signatures.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return tuple(signatures)


def _file_names(files: TlsFiles) -> str:
    return ", ".join(filter(None, (files.ca_file, files.cert_file, files.key_file))) or "the system"


def _error_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificate that can be used ({error.reason or 'broken'})"
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else "cannot be read"
    return str(error)
