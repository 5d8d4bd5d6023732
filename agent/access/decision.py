"""The plain types of an access check: what a client presents, and the refusal it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.errors import AgentError

# of access checks: `unchecked` is a token without an answer of the API server
ACCESS_RESULTS = ("allowed", "unauthenticated", "forbidden", "unchecked", "limited")
RETRY_S = 2  # after so many seconds a refused client may try again


class ClientCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """What a client presents with one request."""

    peer: str  # its address, to share out expensive checks
    authorization: str = ""  # the header's value
    certificate_names: frozenset[str] | None = None  # None: no certificate that was verified


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a client that may not read a path."""

    status: int
    text: str
    headers: Mapping[str, str] = {}


class TokenUser(msgspec.Struct, frozen=True, kw_only=True):
    """The account that a token belongs to, as the API server names it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class AccessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a gate, for metrics."""

    results: Mapping[str, int] = {}  # requests by result
    is_stale: bool = False  # changed files cannot be used
    expires_s: float | None = None  # Unix time of the certificate's end; None: no TLS


class CheckFailed(AgentError):
    """The credentials could not be checked: the check has no result, so nothing is served."""


class TooManyChecks(AgentError):
    """More expensive checks wait than the server does at once."""


def certificate_names(certificate: Mapping[str, object] | None) -> frozenset[str] | None:
    """Return the names of a verified certificate, `None` without one.

    The names are those of `SSLSocket.getpeercert`: each DNS name, address, e-mail and URI of the
    subject's alternative names, and each common name as `CN=NAME`.
    """
    if not certificate:
        return None
    names = {str(value) for _, value in _pairs(certificate.get("subjectAltName"))}
    for part in _sequence(certificate.get("subject")):
        names |= {f"CN={value}" for kind, value in _pairs(part) if kind == "commonName"}
    return frozenset(names)


def _sequence(value: object) -> Iterable[object]:
    return value if isinstance(value, tuple) else ()


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    return [one for one in _sequence(value) if isinstance(one, tuple) and len(one) == 2]
