"""The rules of access that are in force, read from settings and files, and again when they change.

Rules that cannot be used never replace those in force, and neither do rules that would open what
was closed: an empty file may be one that somebody is about to write.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping

import msgspec

from agent.access.certificates import (
    ACCEPT,
    REQUIRE,
    FileSignatures,
    TlsConfig,
    certificate_end_s,
    check_tls,
    file_signatures,
    server_context,
)
from agent.access.web_config import WebConfig, read_web_config
from agent.errors import BadConfig
from agent.snapshot.self_check import SelfCheck

log = logging.getLogger(__name__)

CHECK_NAME = "metrics-access"
REREAD_S = 2.0  # between two looks at the files


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say; `where` is the key of `tls`, for messages."""

    tls: TlsConfig = TlsConfig()
    web_config_file: str = ""
    tokens: bool = False  # accept bearer tokens of the cluster
    where: str = "metrics.tls"

    @property
    def is_on(self) -> bool:
        """Return whether anything restricts or encrypts."""
        return self.tls.is_on or bool(self.web_config_file) or self.tokens


class AccessRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force; all of them come from one reading of the files."""

    tls: TlsConfig = TlsConfig()
    context: ssl.SSLContext | None = None  # None: plain HTTP
    expires_s: float | None = None  # Unix time of the certificate's end
    users: Mapping[str, str] = {}
    tokens: bool = False
    headers: Mapping[str, str] = {}
    interval_s: float = 0.0
    burst: int = 0

    @property
    def needs_credentials(self) -> bool:
        """Return whether a client without credentials is refused."""
        return bool(self.users) or self.tokens or self.tls.client_auth in (ACCEPT, REQUIRE)


def load_rules(settings: AccessSettings) -> tuple[AccessRules, FileSignatures]:
    """Read all files; raise `BadConfig` that names the file or the key."""
    tls, web = settings.tls, WebConfig()
    check_tls(tls, settings.where)
    files = tls.files
    try:
        if settings.web_config_file:
            files = (settings.web_config_file, *files)
            before = file_signatures(files)
            web = read_web_config(settings.web_config_file)
            if web.tls.is_on and tls.is_on:
                raise BadConfig(
                    f"{settings.web_config_file}: tls_server_config: {settings.where} is set as "
                    "well: use one of them"
                )
            tls = web.tls if web.tls.is_on else tls
            files = (*files, *web.tls.files)
            before = (*before, *file_signatures(web.tls.files))
        else:
            before = file_signatures(files)
    except OSError as error:
        raise BadConfig(f"{error.filename}: {error.strerror}") from error
    context = server_context(tls) if tls.is_on else None
    rules = AccessRules(
        tls=tls,
        context=context,
        expires_s=None if context is None else certificate_end_s(context, tls),
        users=web.users,
        tokens=settings.tokens,
        headers=web.headers,
        interval_s=web.interval_s,
        burst=web.burst,
    )
    return rules, before


class AccessFiles:
    """Keeps the rules in step with their files. Belongs to the loop thread; others may read."""

    def __init__(self, settings: AccessSettings) -> None:
        """Read the files; raise `BadConfig`."""
        self._settings = settings
        self.rules, self._signatures = load_rules(settings)
        self.problem = ""  # why the files as they are now are not in force
        self.reloads = 0

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return the context for the next connection; `None`: plain HTTP."""
        return self.rules.context

    def check(self) -> SelfCheck:
        """Return whether the rules in force are those of the files."""
        message = self.problem or f"files read again {self.reloads} times"
        return SelfCheck(
            name=CHECK_NAME,
            ok=not self.problem,
            message=message,
            gates_ready=False,
            reason="MetricsAccessStale",
        )

    async def run(self) -> None:
        """Read changed files until cancelled."""
        while True:
            await asyncio.sleep(REREAD_S)
            await self.reread()

    async def reread(self) -> None:
        """Read the files if they have changed; otherwise, and after an error, nothing changes."""
        event_loop = asyncio.get_running_loop()
        try:
            loaded = await event_loop.run_in_executor(None, self._load_changed)
            if loaded is None:
                self._report("")
                return
            self._check_replacement(loaded[0])
        except BadConfig as error:
            self._report(str(error))
            return
        self.rules, self._signatures = loaded
        self.reloads += 1
        self._report("")
        log.info("access_rules_read", extra={"reloads": self.reloads})

    def _load_changed(self) -> tuple[AccessRules, FileSignatures] | None:
        paths = [path for path, *_ in self._signatures]
        try:
            if file_signatures(paths) == self._signatures:
                return None
        except OSError as error:
            raise BadConfig(f"{error.filename}: {error.strerror}") from error
        return load_rules(self._settings)

    def _check_replacement(self, rules: AccessRules) -> None:
        """Refuse rules that change the protocol or remove all credentials."""
        if (rules.context is None) != (self.rules.context is None):
            raise BadConfig("TLS can be switched on and off by a restart only")
        if self.rules.needs_credentials and not rules.needs_credentials:
            raise BadConfig("the new files ask for no credentials: restart if that is intended")
        if self.rules.tls.client_auth == REQUIRE and rules.tls.client_auth != REQUIRE:
            raise BadConfig("the new files need no client certificate: restart if intended")

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            extra = {"error": problem, "in_force": "the rules before"}
            log.error("access_rules_not_read", extra=extra)
        self.problem = problem


def following_context(files: AccessFiles) -> ssl.SSLContext | None:
    """Return a context for a server that takes one once: each handshake gets the current one.

    Only the certificate and the CA of clients follow the files; versions and whether clients need a
    certificate stay as they were at the start.
    """
    first = files.context
    if first is None:
        return None
    outer = server_context(files.rules.tls)

    def follow(connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
        current = files.context
        if current is not None:
            connection.context = current

    outer.sni_callback = follow
    return outer
