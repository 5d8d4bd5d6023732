"""How long the runtime waits for Synchronize: 250 pods with 500 containers in one message.

Seen from the runtime, with the plug-in in a process of its own. Limit: the same bytes over a bare
socket, and decoded once, which nobody can do without in the end. Peer: a plug-in that decodes
before it answers and copies each pod and container, as is usual.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from agent.nri.messages import parse_runtime_container, parse_sandbox
from bench.containers.messages import picture
from bench.containers.peers import plugin_alone, socket_echo
from bench.harness import Row, compare
from proto.gen import nri_plugin_pb2 as nri

PODS, CONTAINERS = 250, 2  # of each pod
GATE_MS = 200


def rows() -> Iterator[Row]:
    """Yield the wait."""
    whole = picture(PODS, CONTAINERS)

    with plugin_alone() as (_, runtime), socket_echo(len(whole), 2) as (_, ask_bare):

        def subject() -> float:
            return runtime.ask("Synchronize", whole)[0] * 1e3

        def copied() -> float:
            began_s = time.perf_counter()
            message = nri.SynchronizeRequest.FromString(whole)
            records = [
                *map(parse_sandbox, message.pods),
                *map(parse_runtime_container, message.containers),
            ]
            took_s = time.perf_counter() - began_s
            assert len(records) == PODS * (1 + CONTAINERS)
            return (took_s + ask_bare(whole)) * 1e3

        def decoded() -> float:
            began_s = time.perf_counter()
            nri.SynchronizeRequest.FromString(whole)
            return (time.perf_counter() - began_s + ask_bare(whole)) * 1e3

        yield compare(
            "nri_synchronize",
            "ms",
            subject,
            peer=copied,
            limit=decoded,
            gate=f"subject<={GATE_MS}",
        )
