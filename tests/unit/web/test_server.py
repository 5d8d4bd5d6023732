"""The HTTP side: what each path answers, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from agent.access.connections import SECURITY_HEADERS
from agent.objects.yaml_text import to_yaml
from agent.web.server import MAX_RENDERS, create_page_app
from tests.unit.web.view import HOSTILE, StillView, eight_cards

T = TypeVar("T")
Ask = Callable[[TestClient], Awaitable[ClientResponse]]  # type: ignore[type-arg]  # any request


def answer(view: StillView, ask: Ask) -> tuple[int, dict[str, str], bytes]:
    async def run() -> tuple[int, dict[str, str], bytes]:
        async with TestClient(TestServer(create_page_app(view), host="127.0.0.1")) as client:
            response = await ask(client)
            return response.status, dict(response.headers), await response.read()

    return asyncio.run(run())


def get(
    path: str, view: StillView | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    sent = {"Accept-Encoding": "identity", **headers}
    result = view or StillView(eight_cards())
    status, received, body = answer(result, lambda client: client.get(path, headers=sent))
    return status, received, body.decode()


def test_published_objects_and_events_are_available_as_json() -> None:
    view = StillView(eight_cards())
    objects = json.loads(get("/api/v1/objects", view)[2])["objects"]
    published = view.snapshot().publications
    assert [one["text"] for one in objects] == [
        to_yaml(one.desired.body).decode() for one in published
    ]
    assert [(one["kind"], one["where"], one["problem"]) for one in objects] == [
        (one.desired.kind, one.where, one.problem) for one in published
    ]
    events = json.loads(get("/api/v1/events", view)[2])["events"]
    assert [event["reason"] for event in events] == [
        event.reason for event in view.snapshot().events
    ]
    assert objects
    assert events


PATHS = (
    *("/", "/status", "/pods", "/settings", "/objects", "/page.js"),
    *("/topology.svg", "/api/v1/devices", "/metrics"),
)


@pytest.mark.parametrize("path", PATHS)
def test_every_page_answers_and_keeps_other_pages_out(path: str) -> None:
    status, headers, body = get(path)
    assert status == 200
    assert body
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/topology.svg"])
def test_nothing_of_a_machine_or_pod_becomes_markup(path: str) -> None:
    _, _, body = get(path)
    assert "<script>" not in body
    assert body.count("<script") == (path == "/")  # the page's own
    assert HOSTILE not in body


def test_the_page_needs_no_javascript_and_names_every_device() -> None:
    _, _, body = get("/")
    for name in (*(f"GPU {i}" for i in range(8)), "NIC 10", "Xid79", "NV18"):
        assert name in body
    assert 'http-equiv="refresh"' not in body


@pytest.mark.parametrize(
    ("query", "content"),
    [("5", '"5"'), ("0", '"1"'), ("9999", '"3600"'), ("x", None), ("-1", None)],
)
def test_refresh_is_bounded(query: str, content: str | None) -> None:
    _, _, body = get(f"/?refresh={query}")
    assert (f'http-equiv="refresh" content={content}' in body) == (content is not None)
    assert ('http-equiv="refresh"' in body) == (content is not None)


@pytest.mark.parametrize(("ready", "status", "word"), [(True, 200, "ok"), (False, 503, "unready")])
def test_the_body_of_readyz_is_one_word(ready: bool, status: int, word: str) -> None:
    view = StillView(eight_cards(), ready=ready)
    assert get("/readyz", view)[::2] == (status, f"{word}\n")
    assert get("/livez", view)[::2] == (200, "ok\n")


def test_healthz_names_the_check_that_fails() -> None:
    status, _, body = get("/healthz?verbose", StillView(eight_cards(), ready=False))
    assert status == 503
    lines = body.splitlines()
    failed = [line for line in lines if line.startswith("[-]")]
    assert [line.split()[1] for line in failed] == ["output"]
    assert "[+] a" in lines
    assert lines[-1] == "not ready"


@pytest.mark.parametrize(
    ("accept", "kind", "end"),
    [
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8", "up 1\n"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "# EOF\n",
        ),
    ],
)
def test_metrics_come_in_the_accepted_format(accept: str, kind: str, end: str) -> None:
    status, headers, body = get("/metrics", Accept=accept)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert body.endswith(end)


def test_gzip_is_used_where_it_is_understood() -> None:
    async def run() -> tuple[str, bytes]:
        server = TestServer(create_page_app(StillView(eight_cards())), host="127.0.0.1")
        async with TestClient(server, auto_decompress=False) as client:
            response = await client.get("/metrics", headers={"Accept-Encoding": "gzip"})
            return response.headers["Content-Encoding"], await response.read()

    encoding, body = asyncio.run(run())
    assert encoding == "gzip"
    assert gzip.decompress(body) == b"up 1\n"


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/snapshot"])
def test_head_has_the_headers_of_get_and_renders_nothing(path: str) -> None:
    class Unrendered(StillView):
        async def offload(self, work: Callable[[], T]) -> T:
            raise AssertionError(work)

    _, desired, _ = get(path)
    sent = {"Accept-Encoding": "identity"}
    status, headers, body = answer(
        Unrendered(eight_cards()), lambda client: client.head(path, headers=sent)
    )
    assert (status, body) == (200, b"")
    del desired["Content-Length"], desired["Date"], headers["Date"]
    assert headers == desired


def test_a_page_longer_than_a_slice_arrives_whole_in_both_codings() -> None:
    page = b"".join(b"line %d\n" % number for number in range(100_000))

    class Long(StillView):
        def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
            assert not openmetrics
            yield from (page[start : start + 5000] for start in range(0, len(page), 5000))

    for coding in ("identity", "gzip"):
        status, received, body = get("/metrics", Long(eight_cards()), **{"Accept-Encoding": coding})
        assert (status, body) == (200, page.decode())
        assert received.get("Content-Encoding", "identity") == coding


def test_a_client_that_goes_while_a_page_is_sent_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Huge(StillView):
        def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
            del openmetrics
            yield b"x" * (32 << 20)

    async def run() -> str:
        async with TestServer(create_page_app(Huge(eight_cards())), host="127.0.0.1") as server:
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                await reader.readexactly(100)
                writer.transport.abort()
                await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /livez HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.decode().splitlines()[-1]

    with caplog.at_level("WARNING"):
        assert asyncio.run(run()) == "ok"
    assert caplog.records == []


def test_a_scraper_gets_its_answer_before_it_stops_waiting() -> None:
    class Slow(StillView):
        async def offload(self, work: Callable[[], T]) -> T:
            await asyncio.sleep(60)
            return work()

    headers = {"X-Prometheus-Scrape-Timeout-Seconds": "0.2"}
    status, _, body = get("/metrics", Slow(eight_cards()), **headers)
    assert (status, body) == (503, "the collector is stuck; see /healthz\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reading_is_allowed(method: str) -> None:
    view = StillView(eight_cards())
    status, headers, _ = answer(view, lambda client: client.request(method, "/"))
    assert status == 405
    assert headers["X-Frame-Options"] == "DENY"


def test_pages_of_errors_have_the_headers_of_all_pages() -> None:
    unknown, refused = get("/debug/rescan"), get("/", Host="evil.example")
    assert (unknown[0], refused[0]) == (404, 403)
    for _, headers, _ in (unknown, refused):
        assert {name: headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS


def test_devices_are_json_with_absent_facts_as_null() -> None:
    _, _, body = get("/api/v1/devices")
    devices = json.loads(body)["devices"]
    assert len(devices) == 12
    third = devices[2]
    assert third["health"]["reason"] == "Xid79"
    assert third["pcie_path"][0] == "pci0000:4c"
    assert all(device["memory_bytes"] is None for device in devices if device["type"] == "rdma")


def test_the_snapshot_has_the_age_of_each_part() -> None:
    _, _, body = get("/api/v1/snapshot")
    parts = json.loads(body)["parts"]
    assert parts["devices"]["age_s"] == 3.0
    assert parts["report"]["age_s"] is None
    assert parts["numa"]["value"]["nodes"][0]["cpus"] == "0-1"


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "10.0.0.1:9316", "127.0.0.1.evil.example", ""),
        *("[::1]evil.example", "[::1].evil.example:1", "[::1]:x", "[::1", "::1]", "::1", "[]"),
        *("localhost:1:2", "127.0.0.1:evil", "evil.example[::1]", "[::1%evil]", "localhost@evil"),
    ],
)
def test_a_foreign_host_name_gets_metrics_and_probes_only(host: str) -> None:
    assert get("/", Host=host)[0] == 403
    assert get("/api/v1/devices", Host=host)[0] == 403
    assert [get(path, Host=host)[0] for path in ("/metrics", "/livez", "/readyz")] == [200] * 3


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9317", "[::1]:9316", "[::1]", "127.0.0.1:1"]
)
def test_loopback_names_get_the_page(host: str) -> None:
    assert get("/", Host=host)[0] == 200


class StuckView(StillView):
    """A collector that does not come back, or not before it is let go."""

    def __init__(self, *, late: bool) -> None:
        super().__init__(eight_cards())
        self.late = late
        self.let_go = asyncio.Event()

    async def offload(self, work: Callable[[], T]) -> T:
        if self.late:
            raise TimeoutError
        await self.let_go.wait()
        return work()


class CountingView(StuckView):
    """Counts the expositions."""

    def __init__(self, *, late: bool) -> None:
        super().__init__(late=late)
        self.renders = 0

    def metrics(self, *, openmetrics: bool) -> Iterator[bytes]:
        self.renders += 1
        return super().metrics(openmetrics=openmetrics)


def test_a_stuck_collector_is_a_503_that_says_so_and_probes_still_answer() -> None:
    status, _, body = get("/metrics", StuckView(late=True))
    assert (status, body) == (503, "the collector is stuck; see /healthz\n")
    assert get("/livez", StuckView(late=True))[0] == 200


def test_scrapes_at_the_same_time_are_rendered_once_and_none_takes_the_others_time() -> None:
    async def run() -> list[int]:
        view = CountingView(late=False)
        async with TestClient(TestServer(create_page_app(view), host="127.0.0.1")) as client:

            async def scrape(**headers: str) -> int:
                async with client.get("/metrics", headers=headers) as response:
                    return response.status

            hasty = asyncio.create_task(scrape(**{"X-Prometheus-Scrape-Timeout-Seconds": "0.05"}))
            others = [asyncio.create_task(scrape()) for _ in range(2 * MAX_RENDERS)]
            assert await hasty == 503
            view.let_go.set()
            result = await asyncio.gather(*others)
            assert view.renders == 1
            assert await scrape() == 200  # a later one gets fresh figures
            assert view.renders == 2
            return list(result)

    assert asyncio.run(run()) == [200] * 2 * MAX_RENDERS


def test_requests_do_not_pile_up_without_bound() -> None:
    async def run() -> list[int]:
        view = StuckView(late=False)
        async with TestClient(TestServer(create_page_app(view), host="127.0.0.1")) as client:
            requests = [
                asyncio.create_task(client.get("/api/v1/snapshot")) for _ in range(MAX_RENDERS + 3)
            ]
            refused: list[object] = []
            while len(refused) < 3:
                await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)
                refused = [task for task in requests if task.done()]
            view.let_go.set()
            return sorted(answer.status for answer in await asyncio.gather(*requests))

    assert asyncio.run(run()) == [200] * MAX_RENDERS + [503] * 3


def test_the_page_may_load_its_own_script_and_nothing_else() -> None:
    _, headers, body = get("/page.js")
    assert headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert body.startswith("//")
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"


def test_many_open_pages_cost_one_rendering_a_second() -> None:
    class CountingView(StillView):
        count = 0

        async def offload(self, work: Callable[[], T]) -> T:
            self.count += 1
            return work()

    async def run() -> tuple[list[bytes], int]:
        view = CountingView(eight_cards())
        async with TestClient(TestServer(create_page_app(view), host="127.0.0.1")) as client:

            async def read(path: str) -> bytes:
                async with client.get(path) as answer:
                    assert answer.status == 200
                    return await answer.read()

            bodies = await asyncio.gather(*(read("/") for _ in range(MAX_RENDERS + 10)))
            slices = view.count
            await read("/?refresh=5")  # its refresh is in the page: it is of one reader
            assert view.count > slices
            return bodies, slices

    bodies, slices = asyncio.run(run())
    assert len(set(bodies)) == 1
    assert slices < MAX_RENDERS
