"""The edge to the HTTP library: its errors become ours, once, here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from agent.kube.errors import ApiError, BadAnswer, Unreachable
from agent.kube.proxy import Proxy
from agent.kube.session.answers import extract

if TYPE_CHECKING:
    import aiohttp


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a request went, for messages."""

    server: str
    proxy: Proxy | None
    whose: str  # who must have signed the server's certificate

    def __str__(self) -> str:
        """Say where it went."""
        return f"{self.server} through {self.proxy}" if self.proxy else self.server


@contextlib.contextmanager
def ours(what: str, way: Way, *, begun: bool = False) -> Iterator[None]:
    """Raise our error for one of the library's; `what` was done.

    `begun`: the head of an answer has come, so that what is wrong now is wrong with its body.
    """
    # imported here: 180 ms that only a session needs, and what is done here needs it anyway
    import aiohttp  # noqa: PLC0415 - see above

    try:
        yield
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
        if begun:
            raise Unreachable(what, f"the answer of {way} broke off") from error
        raise from_library(what, error, way) from error
    except (aiohttp.ClientError, OSError) as error:
        raise from_library(what, error, way) from error
    except ValueError as error:  # a label of 64 characters, or of none
        raise Unreachable(what, f"{way}: no name that could be asked for") from error


def was_closed(error: ApiError) -> bool:
    """Say whether the connection was gone when the request was sent, or before any answer."""
    import aiohttp  # noqa: PLC0415 - as above

    cause = error.__cause__
    return isinstance(
        cause, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError
    ) and not isinstance(cause, aiohttp.ClientConnectorError)


def was_distrusted(error: ApiError) -> bool:
    """Say whether the server's certificate was not believed."""
    return getattr(error.__cause__, "certificate_error", None) is not None


def from_library(what: str, error: Exception, way: Way) -> ApiError:
    """Return our error for one of the library's."""
    import aiohttp  # noqa: PLC0415 - as above

    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError):
        return Unreachable(what, _no_connection(error, way))
    match error:
        case aiohttp.ClientHttpProxyError():
            return Unreachable(what, f"the proxy {way.proxy} refused with {error.status}")
        case aiohttp.ServerDisconnectedError():
            return Unreachable(what, f"{way} closed the connection without an answer")
        case aiohttp.ClientResponseError():
            said = extract(error.message)[:80]
            return BadAnswer(what, f"{way} does not speak HTTP: {said}")
        case TimeoutError():
            return Unreachable(what, f"{way}: no connection in time")
        case OSError():
            return Unreachable(what, f"{way}: {_os_words(error)}")
    return Unreachable(what, f"{way}: {type(error).__name__}")


def _no_connection(
    error: aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError, way: Way
) -> str:
    import aiohttp  # noqa: PLC0415 - as above

    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"{way} is not believed: {_distrust(error, way.whose)}"
        case aiohttp.ClientConnectorDNSError():
            return f"{error.host}: no such name ({_os_words(error.os_error)})"
        case aiohttp.ClientProxyConnectionError():
            return f"the proxy {way.proxy}: {_os_words(error.os_error)}"
        case aiohttp.ClientConnectorSSLError():
            return f"{way}: no TLS: {_tls_words(error.os_error)}"
    return f"{way}: {_os_words(error.os_error)}"


def _distrust(error: Exception, whose: str) -> str:
    cause = getattr(error, "certificate_error", None)
    words = getattr(cause, "verify_message", "") or str(cause)
    if "ostname mismatch" in words or "IP address mismatch" in words:
        return f"its certificate is for another name: {extract(words)}"
    if "expired" in words or "not yet valid" in words:
        return f"{words}; if that cannot be, look at this node's clock"
    return f"its certificate is not signed by {whose}: {extract(words)}"


def _tls_words(error: OSError) -> str:
    return extract(str(getattr(error, "reason", "") or error))[:80]


def _os_words(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return extract(error.strerror or type(error).__name__)[:80]
