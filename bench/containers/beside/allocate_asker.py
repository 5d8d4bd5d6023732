"""Asks for cards: for each `SOCKET COUNT PACE_S IDS` a line of JSON seconds; IDS are joined by `,`.

In a process of its own, since a channel's threads hold up whoever measures beside them. A refused
call ends it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

import grpc

from bench.containers.beside.allocate_echo import METHOD, SERVICE
from proto.gen import deviceplugin_v1beta1_pb2 as pb

DEADLINE_S = 30.0


def questions(ids: list[str]) -> Iterator[bytes]:
    """Yield requests for one, two, … cards in turn, without end."""
    while True:
        for size in range(1, len(ids) + 1):
            request = pb.AllocateRequest()
            request.container_requests.add(devices_ids=ids[:size])
            yield request.SerializeToString()


def main() -> None:
    """Ask as told, until the input ends."""
    channels: dict[str, grpc.Channel] = {}
    for line in sys.stdin:
        path, count, pace_s, ids = line.split()
        if path not in channels:
            options = (("grpc.default_authority", "localhost"),)
            channels[path] = grpc.insecure_channel(f"unix:{path}", options=options)
        call: Callable[..., object] = channels[path].unary_unary(f"/{SERVICE}/{METHOD}")
        taken = []
        for question, _ in zip(questions(ids.split(",")), range(int(count)), strict=False):
            began_s = time.perf_counter()
            call(question, timeout=DEADLINE_S, wait_for_ready=True)
            taken.append(time.perf_counter() - began_s)
            time.sleep(float(pace_s))
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
