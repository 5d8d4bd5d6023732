"""Hundreds of slow clients at a real agent: its loops do not notice, and others are answered."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from agent.access.connections import MAX_CONNECTIONS, RESERVED_DESCRIPTORS
from tests.patience import PATIENCE_S
from tests.process.agent import EIGHT_CARDS, Agent, running

COUNT = 100  # of each kind
BEATS = 12  # of the event loop's heartbeat, which are compared
LATENESS = "xpu_agent_event_loop_lateness_seconds"
LATE_S = "0.25"  # a heartbeat that is later counts: the next one is due
KINDS: dict[str, bytes] = {
    "half a header, byte by byte": b"GET / HTTP/1.1\r\nX: ",
    "no byte of its answers read": (
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ),
    "its own half closed": b"GET / HTTP/1.1\r\n",
    "idle after an answer": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


class SlowClients:
    """Holds `COUNT` connections of each kind, and opens one again that is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._selector = selectors.DefaultSelector()
        self.opened = 0

    def start(self) -> None:
        for kind in KINDS:
            for _ in range(COUNT):
                self._open(kind)
        self._thread.start()

    def stop(self) -> None:
        self._is_ending.set()
        self._thread.join(PATIENCE_S)
        for key in list(self._selector.get_map().values()):
            self._close(key)

    def _open(self, kind: str) -> None:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            one.connect(("127.0.0.1", self._port))
        reads = kind != "no byte of its answers read"
        mask = selectors.EVENT_WRITE | (selectors.EVENT_READ if reads else 0)
        self._selector.register(one, mask, (kind, KINDS[kind]))
        self.opened += 1

    def _close(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()

    def _run(self) -> None:
        while not self._is_ending.is_set():
            for key, mask in self._selector.select(0.05):
                try:
                    self._step(key, mask)
                except OSError:
                    self._close(key)
                    self._open(key.data[0])
            self._is_ending.wait(0.02)

    def _step(self, key: selectors.SelectorKey, mask: int) -> None:
        one, (kind, unsent) = key.fileobj, key.data
        assert isinstance(one, socket.socket)
        if mask & selectors.EVENT_READ and not one.recv(4096):
            raise ConnectionResetError
        if not mask & selectors.EVENT_WRITE:
            return
        if unsent:
            unsent = unsent[one.send(unsent) :]
            if not unsent and kind == "its own half closed":
                one.shutdown(socket.SHUT_WR)
        elif kind == "half a header, byte by byte":
            one.send(b"a")
        if unsent or kind == "half a header, byte by byte":
            self._selector.modify(one, key.events, (kind, unsent))
        elif kind == "no byte of its answers read":
            self._selector.modify(one, selectors.EVENT_WRITE, (kind, KINDS[kind]))
        else:
            self._selector.modify(one, selectors.EVENT_READ, (kind, b""))


@contextmanager
def slow_clients(port: int) -> Iterator[SlowClients]:
    clients = SlowClients(port)
    clients.start()
    try:
        yield clients
    finally:
        clients.stop()


def held_connections(pid: int, port: int) -> int:
    """Return how many connections of a port a process holds, those in the backlog not counted."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    count = 0
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        is_listening = fields[3] == "0A"
        if int(fields[1].rpartition(":")[2], 16) == port and not is_listening:
            count += f"socket:[{fields[9]}]" in inodes
    return count


def get(agent: Agent, path: str) -> str:
    """Return a page; a request that is refused because others wait is sent again."""
    pages: list[str] = []

    def is_answered() -> bool:
        status, text = agent.get(path)
        assert status in (200, 503), text
        pages[:] = [text] * (status == 200)
        return status == 200

    agent.wait_until(is_answered, path)
    return pages[0]


class Figures:
    """The agent's own figures, of its metrics."""

    def __init__(self, agent: Agent) -> None:
        text = get(agent, "metrics")
        self.beats = self._value(text, rf"{LATENESS}_count\{{[^}}]*\}}")
        on_time = rf'{LATENESS}_bucket\{{le="{re.escape(LATE_S)}",[^}}]*\}}'
        self.late = self.beats - self._value(text, on_time)
        self.memory = self._value(text, "process_resident_memory_bytes")

    @staticmethod
    def _value(text: str, pattern: str) -> float:
        found = re.search(rf"^{pattern} (\S+)$", text, re.MULTILINE)
        assert found is not None, pattern
        return float(found[1])


def wait_for_beats(agent: Agent, since: Figures) -> Figures:
    """Return the figures after so many more heartbeats."""
    until_s = time.monotonic() + PATIENCE_S
    while (now := Figures(agent)).beats < since.beats + BEATS:
        assert time.monotonic() < until_s
        time.sleep(0.2)
    return now


def test_slow_clients_neither_delay_the_loops_nor_keep_others_out(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--host", str(EIGHT_CARDS)) as agent:
        port = urlsplit(agent.url).port or 0
        agent.wait_until(lambda: agent.get("readyz")[0] == 200, "readiness")
        start = Figures(agent)
        quiet = wait_for_beats(agent, start)
        with slow_clients(port) as clients:
            agent.wait_until(
                lambda: held_connections(agent.process.pid, port) >= MAX_CONNECTIONS // 2,
                "the slow clients",
            )
            begin = Figures(agent)
            loaded = wait_for_beats(agent, begin)
            held = held_connections(agent.process.pid, port)
            assert held <= MAX_CONNECTIONS + RESERVED_DESCRIPTORS
            assert clients.opened > len(KINDS) * COUNT  # they came again
            # the next client has its answers
            assert agent.get("livez") == (200, "ok\n")
            agent.wait_until(lambda: agent.get("readyz") == (200, "ok\n"), "ready")
            assert "</html>" in get(agent, "")
            agent.wait_until(lambda: "[-]" not in get(agent, "healthz?verbose"), "all checks")
        beats = loaded.beats - begin.beats
        late, late_before = loaded.late - begin.late, quiet.late - start.late
        # on a machine with other work, a heartbeat may be late in either part
        assert late <= late_before + beats / 4, (late, late_before, beats)
        assert loaded.memory < 1.5 * quiet.memory
        assert agent.end() == 0
