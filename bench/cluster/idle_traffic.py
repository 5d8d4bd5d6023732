"""What an agent asks of the API server in two minutes in which nothing happens.

Eight cards, 250 pods that do not change, a kubelet; after the first report. Peer: an agent that
gets and replaces the Device each three seconds, as koordlet does; nothing else that one asks for is
counted. A watch that stays open is no request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from agent.kube.resources import DEVICES, NODE_METRICS, TOPOLOGIES
from bench.cluster.busy_citizen import NODE, busy_citizen
from bench.cluster.control import WRITES, Control, acknowledged_s
from bench.harness import Row
from tests.apiserver.log import Logged

REPORT_S = 30.0  # within which the first report is expected
LOOK_S = 1.0
SETTLED_S = 5.0  # after that report
MEASURED_S = 120.0
PEER_EVERY_S = 3.0


def idle_requests(control: Control) -> list[Logged]:
    """Return what is asked while nothing happens."""
    until_s = time.monotonic() + REPORT_S
    while not acknowledged_s(control.requests(), NODE_METRICS.plural):
        if time.monotonic() > until_s:
            raise RuntimeError(f"no NodeMetric within {REPORT_S:g} s")
        time.sleep(LOOK_S)
    time.sleep(SETTLED_S)
    control.forget()
    time.sleep(MEASURED_S)
    return control.requests()


def peer_bytes(device: bytes) -> float:
    """Return the bytes of one cycle of the peer: the Device comes once and goes twice."""
    return 3.0 * len(device)  # the answer to the PUT is the object again


def _writes(requests: list[Logged], resource: str) -> int:
    return sum(entry.resource == resource and entry.verb in WRITES for entry in requests)


def rows() -> Iterator[Row]:
    """Yield writes a minute of each object, then requests and bytes."""
    with busy_citizen() as (_, control):
        (_, written), *_ = acknowledged_s(_with_device(control), DEVICES.plural)
        device = msgspec.json.encode(written.body)
        requests = idle_requests(control)
    minutes, cycles = MEASURED_S / 60, 60 / PEER_EVERY_S
    for resource, most in ((NODE_METRICS, 1), (DEVICES, 0), (TOPOLOGIES, 0)):
        yield Row(
            name=f"idle_writes_{resource.plural}",
            metric="writes_per_min",
            subject=_writes(requests, resource.plural) / minutes,
            gate=f"subject<={most}",
        )
    others = [entry for entry in requests if entry.name not in ("", NODE)]
    if others:
        raise AssertionError(f"asked for what is not of this node: {others[0]}")
    yield Row(
        name="idle_requests",
        metric="per_min",
        subject=len(requests) / minutes,
        peer=2 * cycles,
        gate="ratio_peer<=0.25",
    )
    yield Row(
        name="idle_bytes",
        metric="per_min",
        subject=sum(entry.body_bytes + entry.answer_bytes for entry in requests) / minutes,
        peer=peer_bytes(device) * cycles,
        gate="ratio_peer<=0.5",
    )


def _with_device(control: Control) -> list[Logged]:
    until_s = time.monotonic() + REPORT_S
    while time.monotonic() < until_s:
        requests = control.requests()
        if acknowledged_s(requests, DEVICES.plural):
            return requests
        time.sleep(LOOK_S)
    raise RuntimeError(f"no Device within {REPORT_S:g} s")
