"""Between a scraper and the agent: changes what the scraper accepts, and notes the answers."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.patience import PATIENCE_S

_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})

Answer = tuple[int, str, str]  # status, media type, coding


class Forwarder(ThreadingHTTPServer):
    """Forwards each GET request to one agent."""

    daemon_threads = True

    def __init__(self, agent_url: str, accept: str) -> None:
        """Listen on a free port; `accept` replaces the scraper's header, empty: it stays."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.agent = urlsplit(agent_url).netloc
        self.accept = accept
        self.answers: Counter[Answer] = Counter()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Forwarder

    def do_GET(self) -> None:
        headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
        if self.server.accept:
            headers["Accept"] = self.server.accept
        connection = http.client.HTTPConnection(self.server.agent, timeout=PATIENCE_S)
        try:
            connection.request("GET", self.path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        kind = answer.headers.get_content_type()
        coding = answer.headers.get("Content-Encoding", "identity")
        self.server.answers[answer.status, kind, coding] += 1
        self.send_response(answer.status)
        for name, text in answer.headers.items():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the library
        del format, args


@contextmanager
def forwarding(agent_url: str, accept: str = "") -> Iterator[Forwarder]:
    """Forward until the block ends."""
    forwarder = Forwarder(agent_url, accept)
    thread = threading.Thread(target=forwarder.serve_forever, daemon=True)
    thread.start()
    try:
        yield forwarder
    finally:
        forwarder.shutdown()
        forwarder.server_close()
        thread.join()
