"""How long best-effort pods keep their CPU after latency-sensitive ones begin to wait for it.

From the first instruction of the waiting programs to the smaller quota of the best-effort class, in
seconds, on this machine's own kernel. The subject is the agent, woken by CPU pressure; the peer is
the loop of one second that Koordinator has, on the same load. A peer whose quota does not shrink
within the deadline counts with the deadline; so it is wherever other work uses the whole machine,
because then its quota is at the floor before. Needs root, version 1 and a unified hierarchy.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from bench.harness import Row
from bench.qos.polling_loop import PollingLoop
from tests.process.cluster.live_node import LiveNode, live_node, wait_until

ROUNDS = 5
THRESHOLD_PERCENT, LEAST_PERCENT = 65, 30
REACTION_DEADLINE_S = 10.0
REST_S = 7.0  # longer than a cut is held
STEPS_AT_REST = 3  # looks in a row that see the same quota
SMALLER = 0.95  # a quota below so much of the one before was reduced
SERVICES = 2 * (os.cpu_count() or 1)


def rows() -> Iterator[Row]:
    """Yield the median and the longest reaction."""
    with live_node(ENFORCE__CPU_SUPPRESSION__PRESSURE="true") as node:
        service = node.add_pod("service", "LS", "/burstable", cpu="500m")
        burner = node.add_pod("burner", "BE", "/besteffort")
        node.prepare_burners(burner, os.cpu_count() or 1).begin()
        protected = tuple("/" + one.split(f"{node.root}/")[1] for one in service[1:2])
        subjects, peers = [], []
        for _ in range(ROUNDS):
            subjects.append(_reaction_of_agent(node, service))
            peers.append(_reaction_of_peer(node, service, protected))
    print(f"# agent: {_texts(subjects)}; polling loop: {_texts(peers)}", file=sys.stderr)
    yield Row(
        name="psi_reaction_median",
        metric="seconds",
        subject=statistics.median(subjects),
        peer=statistics.median(peers),
        gate="subject<=1",
    )
    yield Row(
        name="psi_reaction_longest",
        metric="seconds",
        subject=max(subjects),
        peer=max(peers),
        gate="subject<=1",
    )


def _reaction_of_agent(node: LiveNode, service: tuple[str, ...]) -> float:
    node.ask(
        enable=True,
        cpuSuppressPolicy="cfsQuota",
        cpuSuppressThresholdPercent=THRESHOLD_PERCENT,
        cpuSuppressMinPercent=LEAST_PERCENT,
    )
    try:
        return _reaction_s(node, service)
    finally:
        node.ask(enable=False)
        wait_until(lambda: node.quota_us() == -1, "the agent restores the quota")


def _reaction_of_peer(
    node: LiveNode, service: tuple[str, ...], protected: tuple[str, ...]
) -> float:
    loop = PollingLoop(node, protected, THRESHOLD_PERCENT, LEAST_PERCENT)
    try:
        return _reaction_s(node, service)
    finally:
        loop.stop()


def _reaction_s(node: LiveNode, service: tuple[str, ...]) -> float:
    wait_until(lambda: node.quota_us() != -1, "the first quota")
    _rest(node.quota_us)
    before_us = node.quota_us()
    burners = node.prepare_burners(service, SERVICES)
    begin_s = time.monotonic()
    burners.begin()
    try:
        with suppress(TimeoutError):
            wait_until(
                lambda: node.quota_us() < SMALLER * before_us, "less quota", REACTION_DEADLINE_S
            )
        return min(time.monotonic() - begin_s, REACTION_DEADLINE_S)
    finally:
        burners.end()


def _rest(quota_us: Callable[[], int]) -> None:
    """Wait until no cut is in force and the quota stays about the same."""
    time.sleep(REST_S)
    quotas = [0]
    until_s = time.monotonic() + 3 * REST_S
    while time.monotonic() < until_s:
        quotas.append(quota_us())
        last = quotas[-STEPS_AT_REST:]
        if len(quotas) > STEPS_AT_REST and min(last) >= SMALLER * max(last):
            return
        time.sleep(1.0)


def _texts(values: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
