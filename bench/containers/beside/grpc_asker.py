"""Asks the gRPC echo: for each `COUNT PACE_S` on a line of its input, a line of JSON seconds.

In a process of its own, since a channel's threads hold up whoever measures beside them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import grpc

from bench.containers.beside.grpc_echo import METHOD
from bench.containers.messages import creation, pod

DEADLINE_S = 30.0


def main() -> None:
    """Ask as told, until the input ends."""
    question = creation(pod(), 1)
    with grpc.insecure_channel(f"unix:{sys.argv[1]}") as channel:
        call: Callable[..., object] = channel.unary_unary(METHOD)
        for line in sys.stdin:
            count, pace_s = line.split()
            chosen = []
            for _ in range(int(count)):
                began_s = time.perf_counter()
                call(question, timeout=DEADLINE_S, wait_for_ready=True)
                chosen.append(time.perf_counter() - began_s)
                time.sleep(float(pace_s))
            print(json.dumps(chosen), flush=True)


if __name__ == "__main__":
    main()
