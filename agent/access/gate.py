"""Decides whether a client may read a path: by certificate, token, or user name and password."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Mapping

from agent.access.basic_auth import BasicAuthenticator, parse_basic
from agent.access.certificates import ACCEPT, REQUIRE, TlsConfig
from agent.access.check_queue import RequestRate
from agent.access.decision import (
    RETRY_S,
    AccessStatus,
    CheckFailed,
    ClientCredentials,
    Refusal,
    TooManyChecks,
)
from agent.access.rules import AccessFiles, AccessRules
from agent.access.token_auth import AccessReviewer, TokenAuthenticator, parse_bearer
from agent.clock import SYSTEM_CLOCK, Clock
from agent.errors import BadConfig


class AccessGate:
    """Checks each request for a protected path. Belongs to the loop thread."""

    def __init__(
        self,
        files: AccessFiles,
        reviewer: AccessReviewer | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`reviewer` checks tokens; raises `BadConfig` if tokens are to be accepted without it."""
        if files.rules.tokens and reviewer is None:
            raise BadConfig("metrics.auth.tokens: needs a cluster, which checks the tokens")
        self.files = files
        self.results: Counter[str] = Counter()
        self._clock = clock
        self._tokens = None if reviewer is None else TokenAuthenticator(reviewer, clock)
        self._rules: AccessRules | None = None
        self._passwords: BasicAuthenticator | None = None
        self._rate: RequestRate | None = None

    def status(self) -> AccessStatus:
        """Return the figures of this gate; any thread may call this."""
        return AccessStatus(
            results=dict(self.results),
            is_stale=bool(self.files.problem),
            expires_s=self.files.rules.expires_s,
        )

    @property
    def headers(self) -> Mapping[str, str]:
        """Return headers for answers of protected paths."""
        return self.files.rules.headers

    def is_current(self, context: ssl.SSLContext | None) -> bool:
        """Return whether a connection with this context was made by the rules in force."""
        return context is self.files.context

    async def check(self, credentials: ClientCredentials, path: str) -> Refusal | None:
        """Return `None` if the client may read the path, else the answer."""
        rules = self._current_rules()
        if self._rate is not None and not self._rate.admits():
            return self._refuse("limited", 429, "too many requests\n")
        try:
            refusal = await self._check(rules, credentials, path)
        except TooManyChecks as error:
            return self._refuse("limited", 429, f"{error}\n")
        except CheckFailed:
            return self._refuse("unchecked", 503, "the API server does not check the token now\n")
        if refusal is None:
            self.results["allowed"] += 1
        return refusal

    async def _check(
        self, rules: AccessRules, credentials: ClientCredentials, path: str
    ) -> Refusal | None:
        if not rules.needs_credentials:
            return None
        has_certificate = _is_named(credentials, rules.tls)
        if rules.tls.client_auth == REQUIRE and not has_certificate:
            return self._refuse_certificate(credentials)
        if has_certificate and rules.tls.client_auth == ACCEPT:
            return None
        if not rules.users and not rules.tokens:
            if rules.tls.client_auth == REQUIRE:
                return None
            return self._refuse_certificate(credentials)
        return await self._check_header(rules, credentials, path)

    async def _check_header(
        self, rules: AccessRules, credentials: ClientCredentials, path: str
    ) -> Refusal | None:
        token = parse_bearer(credentials.authorization) if rules.tokens else None
        if token is not None and self._tokens is not None:
            verdict = await self._tokens.verdict(token, path, credentials.peer)
            if verdict.user is not None:
                if verdict.is_allowed:
                    return None
                text = f"user {verdict.user.name!r} may not get {path}: see nonResourceURLs\n"
                return self._refuse("forbidden", 403, text)
            return self._refuse_header(rules)
        pair = parse_basic(credentials.authorization)
        if pair is not None and self._passwords is not None:
            name, password = pair
            if await self._passwords.is_right(name, password, credentials.peer):
                return None
        return self._refuse_header(rules)

    def _current_rules(self) -> AccessRules:
        """Return the rules in force; remembered passwords and the rate are those of the rules."""
        rules, old = self.files.rules, self._rules
        if rules is not old:
            if old is None or rules.users != old.users:
                users = rules.users
                self._passwords = BasicAuthenticator(users, self._clock) if users else None
            if old is None or (rules.interval_s, rules.burst) != (old.interval_s, old.burst):
                self._rate = (
                    RequestRate(rules.interval_s, rules.burst, self._clock)
                    if rules.interval_s
                    else None
                )
            self._rules = rules
        return rules

    def _refuse_certificate(self, credentials: ClientCredentials) -> Refusal:
        if credentials.certificate_names is None:
            return self._refuse("unauthenticated", 403, "needs a client certificate\n")
        return self._refuse("forbidden", 403, "this client certificate is not allowed\n")

    def _refuse_header(self, rules: AccessRules) -> Refusal:
        schemes = (rules.tokens and "Bearer", rules.users and 'Basic realm="metrics"')
        challenge = ", ".join(scheme for scheme in schemes if scheme)
        headers = {"WWW-Authenticate": challenge}
        return self._refuse("unauthenticated", 401, "Unauthorized\n", headers)

    def _refuse(
        self, result: str, status: int, text: str, headers: Mapping[str, str] | None = None
    ) -> Refusal:
        self.results[result] += 1
        if status in (429, 503):
            headers = {"Retry-After": str(RETRY_S)}
        return Refusal(status=status, text=text, headers=headers or {})


def _is_named(credentials: ClientCredentials, tls: TlsConfig) -> bool:
    """Return whether the client has a verified certificate with an allowed name."""
    names = credentials.certificate_names
    if names is None:
        return False
    return not tls.client_names or not names.isdisjoint(tls.client_names)
