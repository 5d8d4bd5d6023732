"""Sockets and addresses that answer, refuse, hang, or belong to another program."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from msgspec.structs import replace

from agent.config.access import MetricsTlsSettings
from agent.config.settings import MetricsSettings
from agent.doctor.facts import ABSENT, ANSWERS, HANGS, OTHER, REFUSED
from agent.doctor.inputs import is_encrypted
from agent.doctor.probes import POD_RESOURCES_METHOD, Source, probe_http, probe_pod_resources
from tests.patience import PATIENCE_S

SHORT_S = 0.2  # deadline of a source that hangs


@contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """Listen on a port; answer the first request, or never with `None`."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                if answer is not None:
                    connection.sendall(answer)
                else:
                    connection.recv(4096)  # until the client leaves

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(PATIENCE_S)


def response(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (response(b"ok\n"), ANSWERS, ""),
        (response(b"<title>nginx</title>", "404 Not Found"), OTHER, "answers 404"),
        (b"\x15\x03\x01\x00\x02\x02\x0a", OTHER, "no HTTP"),
        (None, HANGS, "in time"),
    ],
)
def test_an_address_answers_hangs_or_belongs_to_another_program(
    answer: bytes | None, state: str, words: str
) -> None:
    deadline_s = SHORT_S if answer is None else PATIENCE_S
    with listening(answer) as port:
        found = probe_http("127.0.0.1", port, "/livez", deadline_s, b"ok\n")
    assert (found.state, words in found.detail) == (state, True)
    assert found.address == f"127.0.0.1:{port}"


def test_an_agent_that_speaks_tls_is_reached_whatever_its_certificate_names() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("metrics.xpu-agent").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with context.wrap_socket(connection, server_side=True) as encrypted:
                encrypted.recv(4096)
                encrypted.sendall(response(b"ok\n"))

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        found = probe_http("127.0.0.1", port, "/livez", PATIENCE_S, b"ok\n", encrypted=True)
        thread.join(PATIENCE_S)
    assert found.state == ANSWERS


@pytest.mark.parametrize(
    ("metrics", "encrypted"),
    [
        (MetricsSettings(), False),
        (MetricsSettings(tls=MetricsTlsSettings(cert_file="/c")), True),
        (MetricsSettings(web_config_file="FILE"), True),
        (MetricsSettings(web_config_file="/nonexistent"), False),
    ],
)
def test_whether_the_metrics_are_encrypted_is_known_from_settings_and_file(
    metrics: MetricsSettings, encrypted: bool, tmp_path: Path
) -> None:
    if metrics.web_config_file == "FILE":
        for name in ("c.pem", "k.pem"):
            (tmp_path / name).touch()
        file = tmp_path / "web.yaml"
        file.write_text("tls_server_config: {cert_file: c.pem, key_file: k.pem}\n")
        metrics = replace(metrics, web_config_file=str(file))
    assert is_encrypted(metrics) is encrypted


def test_an_address_where_nobody_listens_is_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert probe_http("127.0.0.1", port, "/livez", PATIENCE_S, b"ok").state == ABSENT


@contextmanager
def kubelet(path: Path, status: grpc.StatusCode | None, release: threading.Event) -> Iterator[None]:
    """Serve the pod-resources API: an empty answer, a status, or none until `release`."""

    class Handler(grpc.GenericRpcHandler):
        def service(
            self, details: grpc.HandlerCallDetails
        ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            if details.method != POD_RESOURCES_METHOD:
                return None

            def call(_: bytes, context: grpc.ServicerContext) -> bytes:
                release.wait(PATIENCE_S)
                if status is not None:
                    context.abort(status, "no")
                return b""

            return grpc.unary_unary_rpc_method_handler(call)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        release.set()
        server.stop(None).wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (None, ANSWERS),
        (grpc.StatusCode.UNIMPLEMENTED, ANSWERS),  # an older kubelet
        (grpc.StatusCode.UNAVAILABLE, REFUSED),
    ],
)
def test_the_pod_resources_api_is_called_and_not_only_its_socket(
    status: grpc.StatusCode | None, state: str, tmp_path: Path
) -> None:
    release = threading.Event()
    release.set()
    path = tmp_path / "kubelet.sock"
    with kubelet(path, status, release):
        assert probe_pod_resources(str(path), PATIENCE_S).state == state


def test_a_kubelet_that_accepts_and_never_answers_hangs(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    with kubelet(path, None, threading.Event()):
        assert probe_pod_resources(str(path), SHORT_S).state == HANGS


def test_a_socket_that_is_absent_or_that_nobody_serves_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    assert probe_pod_resources(str(path), PATIENCE_S).state == ABSENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    assert probe_pod_resources(str(path), PATIENCE_S).state == REFUSED


def test_a_source_that_hangs_costs_its_deadline_and_its_thread_is_left_behind() -> None:
    release = threading.Event()
    hanging = Source(lambda: release.wait(PATIENCE_S), "hanging")
    assert hanging.result(time.monotonic()) is None
    assert hanging.is_running
    release.set()
    assert hanging.result(time.monotonic() + PATIENCE_S) is True


def test_a_bug_of_a_source_is_raised_where_its_result_is_taken() -> None:
    def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Source(fail, "bug").result(time.monotonic() + PATIENCE_S)
