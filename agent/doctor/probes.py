"""Tries sockets and addresses of this machine, each within a deadline, on threads of their own.

A source that hangs costs its deadline and nothing else: its thread is left behind.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.doctor.facts import ABSENT, ANSWERS, HANGS, OTHER, REFUSED, EndpointFacts

T = TypeVar("T")

POD_RESOURCES_METHOD = "/v1.PodResourcesLister/GetAllocatableResources"
MAX_PROBE_BYTES = 4096


class Source(Generic[T]):
    """A call that may hang, begun at once on a daemon thread."""

    def __init__(self, call: Callable[[], T], name: str) -> None:
        """Begin the call."""
        self._results: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()
        self._call = call
        self._thread = threading.Thread(target=self._run, name=f"doctor-{name}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Return whether the call has not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._results.put((self._call(), None))
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self._results.put((None, error))

    def result(self, until_s: float) -> T | None:
        """Return the result; `None` if there is none by a moment of the monotonic clock.

        Raises what the call raised.
        """
        try:
            value, error = self._results.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            return None
        if error is not None:
            raise error
        return value


def open_connection(
    host: str, port: int, deadline_s: float, *, encrypted: bool = False
) -> http.client.HTTPConnection:
    """Return a connection to this machine, not yet opened.

    With TLS the certificate is not checked: it names the node and not the loopback, and nothing
    secret is sent.
    """
    if not encrypted:
        return http.client.HTTPConnection(host, port, timeout=deadline_s)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=deadline_s, context=context)


def probe_http(
    host: str,
    port: int,
    path: str,
    deadline_s: float,
    words: bytes,
    *,
    encrypted: bool = False,
) -> EndpointFacts:
    """Send a GET request; an answer whose body has not these words is another program's."""
    address = f"{host}:{port}"
    connection = open_connection(host, port, deadline_s, encrypted=encrypted)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(MAX_PROBE_BYTES)
    except ConnectionRefusedError:
        return EndpointFacts(address=address, state=ABSENT)
    except TimeoutError:
        return EndpointFacts(address=address, state=HANGS, detail="no answer in time")
    except (OSError, http.client.HTTPException) as error:
        detail = str(error) or type(error).__name__
        return EndpointFacts(address=address, state=OTHER, detail=f"no HTTP: {detail}"[:200])
    finally:
        connection.close()
    if words in body:
        return EndpointFacts(address=address, state=ANSWERS)
    detail = f"{path} answers {response.status} {body[:60].decode('utf-8', 'replace')!r}"
    return EndpointFacts(address=address, state=OTHER, detail=detail)


def probe_pod_resources(path: str, deadline_s: float) -> EndpointFacts:
    """Call the kubelet's pod-resources API."""
    reached = probe_unix_socket(path, deadline_s)
    if reached.state != ANSWERS:
        return reached
    import grpc  # noqa: PLC0415 - grpc

    with grpc.insecure_channel(
        f"unix:{path}",
        options=(("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)),
    ) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(POD_RESOURCES_METHOD)
        try:
            call(b"", timeout=deadline_s)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                return EndpointFacts(address=path, state=HANGS)
            if code is not grpc.StatusCode.UNIMPLEMENTED:  # an older kubelet
                return EndpointFacts(address=path, state=REFUSED, detail=str(code.name))
    return EndpointFacts(address=path, state=ANSWERS)


def probe_unix_socket(path: str, deadline_s: float) -> EndpointFacts:
    """Connect to a socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(deadline_s)
        try:
            connection.connect(path)
        except FileNotFoundError:
            return EndpointFacts(address=path, state=ABSENT, detail="it is not there")
        except TimeoutError:
            return EndpointFacts(address=path, state=HANGS)
        except OSError as error:
            return EndpointFacts(address=path, state=REFUSED, detail=str(error.strerror or error))
    return EndpointFacts(address=path, state=ANSWERS)
