"""From the offer of a changed Device of sixteen cards to the server's acknowledgement.

Over TLS on loopback, 99th percentile. Subject: the outbox, which compares, carries times over,
writes and takes in the answer. Peer: the Kubernetes client for Python, one patch after another.
Limit: aiohttp alone, a request of the same bytes, the answer read and not looked at.
The agent waits 50 ms for further changes before it offers: of the 100 ms that a person may wait,
50 are left. The last row is how long the subject's longest callback holds the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from agent.app.threads import tune_interpreter
from agent.clock import SystemClock
from agent.kube.api import APPLY_PATCH_TYPE, FIELD_MANAGER
from agent.kube.endpoint import InClusterTarget
from agent.kube.session import open_session
from agent.kube.writer.api_writer import ApiWriter
from agent.kube.writer.context import WriterContext
from agent.messages import MessageQueue
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.publications import DesiredObject
from bench.cluster.write_server import UID, Served, api_server, devices
from bench.harness import Row, compare
from bench.node.busy_agent import measure_holds

WRITES = 200  # of one figure
WARM = 10
PAUSE_S = 0.002  # between two: they do not come in a stream
DEADLINE_S = 20.0
HOLD_ROUNDS = 5  # the first seconds are not looked at

Write = Callable[[int], Awaitable[float]]  # which one -> seconds


def p99_ms(taken_s: list[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return statistics.quantiles(taken_s, n=100)[98] * 1e3


async def timed(write: Write) -> list[float]:
    """Write often; return how long each took, without the first few."""
    chosen = []
    for index in range(WARM + WRITES):
        chosen.append(await write(index))
        await asyncio.sleep(PAUSE_S)
    return chosen[WARM:]


async def ours(served: Served, desired_objects: tuple[DesiredObject, ...]) -> list[float]:
    """Write by the outbox."""
    session = await open_session(
        InClusterTarget(url=served.url, folder=served.account), SystemClock(), {}
    )
    outbox = ApiWriter(
        WriterContext(
            api=session,
            clock=SystemClock(),
            store=SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n", uid=UID))),
            messages=MessageQueue(),
        )
    )
    running = asyncio.create_task(outbox.run())

    async def write(index: int) -> float:
        outbox.offer("bench", (desired_objects[index % 2],))
        async with asyncio.timeout(DEADLINE_S):
            while outbox.states()[0].pending_since_s is not None:
                await asyncio.sleep(0.0002)
        (state,) = outbox.states()
        assert index == 0 or state.ack_latency_s is not None, state
        return state.ack_latency_s or 0.0

    try:
        return await timed(write)
    finally:
        await outbox.close(1.0)
        await running
        await session.close()


async def bare(served: Served, desired_objects: tuple[DesiredObject, ...]) -> list[float]:
    """Write by aiohttp alone."""
    import aiohttp  # noqa: PLC0415 - of the limit only

    bodies = [msgspec.json.encode(desired_object.body) for desired_object in desired_objects]
    path = f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{desired_objects[0].name}"
    url = f"{served.url}{path}?fieldManager={FIELD_MANAGER}"
    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": APPLY_PATCH_TYPE}
    context = ssl.create_default_context(cafile=served.ca_file)
    async with aiohttp.ClientSession(headers=headers) as client:

        async def write(index: int) -> float:
            began_s = time.monotonic()
            async with client.patch(url, data=bodies[index % 2], ssl=context) as answer:
                await answer.read()
                assert answer.status < 300, await answer.text()
            return time.monotonic() - began_s

        return await timed(write)


def client(served: Served, desired_objects: tuple[DesiredObject, ...]) -> list[float]:
    """Write by the Kubernetes client."""
    from kubernetes import client as api  # noqa: PLC0415 - of the peer only
    from kubernetes import config  # noqa: PLC0415 - of the peer only

    config.load_kube_config(served.kubeconfig)  # type: ignore[no-untyped-call] # it is so
    objects = api.CustomObjectsApi()

    async def write(index: int) -> float:
        began_s = time.monotonic()
        objects.patch_cluster_custom_object(
            "scheduling.koordinator.sh",
            "v1alpha1",
            "devices",
            desired_objects[index % 2].name,
            dict(desired_objects[index % 2].body),
            field_manager=FIELD_MANAGER,
            _content_type=APPLY_PATCH_TYPE,
        )
        return time.monotonic() - began_s

    return asyncio.run(timed(write))


def rows() -> Iterator[Row]:
    """Yield the time of an acknowledged write and the longest hold of the loop."""
    desired = devices()
    tune_interpreter()  # as the agent does
    with api_server(desired[0].name) as served:
        yield compare(
            "write_ack_p99",
            "ms",
            lambda: p99_ms(asyncio.run(ours(served, desired))),
            peer=lambda: p99_ms(client(served, desired)),
            limit=lambda: p99_ms(asyncio.run(bare(served, desired))),
            gate="subject<=50",
            rounds=5,
        )
        holds_ms: list[tuple[float, str]] = []
        measure_holds(holds_ms)
        for _ in range(HOLD_ROUNDS):
            asyncio.run(ours(served, desired))
        for held_ms, what in sorted(holds_ms, reverse=True)[:5]:
            print(f"# {held_ms:.2f} ms: {what}", file=sys.stderr)
        longest_ms = max((held_ms for held_ms, _ in holds_ms), default=0.0)
        yield Row(name="write_hold", metric="cpu_ms", subject=longest_ms, gate="subject<=2")
