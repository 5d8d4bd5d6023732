"""What enforcement is worth to a latency-sensitive service beside best-effort burners.

The service has a request every 10 ms on each CPU, with a millisecond of work. Its 99th percentile
is taken in four modes, one after the other in three interleaved runs on this machine's own kernel:
alone, beside burners without enforcement, with Koordinator's loop of one second, and with the
agent, whose groups are idle and whose quota follows pressure, too. Other work on the machine has a
small weight beside the bench.
Rows have ratios to both; lines that begin with `#` have each mode and 95 % confidence intervals
of the ratios (a bootstrap over blocks of half a second). `XPU_BENCH_SAMPLES` is a folder that raw
samples are written to. Needs root, version 1 and a unified hierarchy.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Row
from bench.qos.polling_loop import PollingLoop
from tests.process.cluster.live_node import LiveNode, live_node, wait_until

RUNS = 3
SERVE_S = 6.0
ROOT_SHARES = 65536  # of the groups of the bench, beside all other work on the machine
SETTLE_S = 4.0  # after a change of the mode
BLOCK = 50  # requests of half a second
DRAWS = 400
QUIET_US = 1000.0  # a wake-up of the service alone takes less on a machine without other work
THRESHOLD_PERCENT = 65
FIGURES = ("wakes_us", "requests_us")
ALONE, OFF, POLLING, AGENT = "alone", "off", "polling loop", "agent"
MODES = (ALONE, OFF, POLLING, AGENT)
BURNERS_PER_CPU = 2
FOLDER_VARIABLE = "XPU_BENCH_SAMPLES"

Samples = dict[str, dict[str, list[list[float]]]]  # by mode and figure: one list for each service


def rows() -> Iterator[Row]:
    """Yield ratios of the 99th percentiles."""
    samples: Samples = {mode: defaultdict(list) for mode in MODES}
    with live_node(
        root_shares=ROOT_SHARES,
        ENFORCE__CPU_SUPPRESSION__PRESSURE="true",
        ENFORCE__CPU_SUPPRESSION__IDLE="class",
    ) as node:
        service = node.add_pod("service", "LS", "/burstable", cpu="500m")
        burner = node.add_pod("burner", "BE", "/besteffort")
        for run in range(RUNS):
            for mode in MODES[run % len(MODES) :] + MODES[: run % len(MODES)]:
                with _mode(node, mode, service, burner):
                    time.sleep(SETTLE_S)
                    for figures in _serve(service):
                        for name in FIGURES:
                            samples[mode][name].append(figures[name])
    _keep(samples)
    for name in FIGURES:
        _describe(name, samples)
        for other in (OFF, POLLING):
            yield Row(
                name=f"colocation_{name.removesuffix('_us')}_{other.split()[0]}",
                metric="p99_us",
                subject=percentile(_pooled(samples[AGENT][name])),
                peer=percentile(_pooled(samples[other][name])),
                limit=percentile(_pooled(samples[ALONE][name])),
            )


@contextmanager
def _mode(
    node: LiveNode, mode: str, service: tuple[str, ...], burner: tuple[str, ...]
) -> Iterator[None]:
    """Let the burners run, with what limits them in this mode."""
    burners = node.prepare_burners(burner, 0 if mode == ALONE else _burner_count())
    burners.begin()
    loop = None
    if mode == POLLING:
        protected = "/" + service[1].split(f"{node.root}/")[1]
        loop = PollingLoop(node, (protected,), THRESHOLD_PERCENT, 0)
    if mode == AGENT:
        node.ask(
            enable=True,
            cpuSuppressPolicy="cfsQuota",
            cpuSuppressThresholdPercent=THRESHOLD_PERCENT,
        )
    try:
        yield
    finally:
        if loop is not None:
            loop.stop()
        if mode == AGENT:
            node.ask(enable=False)
            wait_until(lambda: node.quota_us() == -1, "the agent restores the quota")
        burners.end()


def _burner_count() -> int:
    return BURNERS_PER_CPU * (os.cpu_count() or 1)


def _serve(groups: tuple[str, ...]) -> Iterator[dict[str, list[float]]]:
    """Run a service for each CPU at the same time; yield what each measured."""
    command = [sys.executable, "-m", "bench.qos.beside.service", str(SERVE_S), *groups]
    services = [
        subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)
    ]
    for service in services:
        output, _ = service.communicate()
        yield json.loads(output)


def _pooled(lists: list[list[float]]) -> list[float]:
    return [value for values in lists for value in values]


def percentile(values: list[float], share: float = 0.99) -> float:
    """Return the value that so many are not above."""
    return sorted(values)[max(0, int(share * len(values)) - 1)]


def ratio_interval(
    subject: list[list[float]], other: list[list[float]], seed: int = 1
) -> tuple[float, float]:
    """Return 95 % of the ratios of 99th percentiles when blocks of both are drawn again."""
    draw = random.Random(seed)
    ratios = sorted(
        percentile(_drawn(subject, draw)) / percentile(_drawn(other, draw)) for _ in range(DRAWS)
    )
    return ratios[int(0.025 * DRAWS)], ratios[int(0.975 * DRAWS) - 1]


def _drawn(lists: list[list[float]], draw: random.Random) -> list[float]:
    drawn: list[float] = []
    for values in lists:
        blocks = [values[at : at + BLOCK] for at in range(0, len(values), BLOCK)]
        for _ in blocks:
            drawn += draw.choice(blocks)
    return drawn


def _describe(name: str, samples: Samples) -> None:
    alone_us = percentile(_pooled(samples[ALONE]["wakes_us"]))
    if alone_us > QUIET_US:
        text = f"wake-ups take {alone_us:.0f} us alone: other work decides, ratios say little"
        print(f"# {text}", file=sys.stderr)
    for mode in MODES:
        values = _pooled(samples[mode][name])
        texts = (f"{percentile(values, share):.0f}" for share in (0.5, 0.9, 0.99, 0.999))
        print(f"# {name} {mode}: p50 p90 p99 p99.9 {' '.join(texts)}", file=sys.stderr)
    for other in (OFF, POLLING, ALONE):
        low, high = ratio_interval(samples[AGENT][name], samples[other][name])
        print(f"# {name} agent to {other}: 95 % from {low:.2f} to {high:.2f}", file=sys.stderr)


def _keep(samples: Samples) -> None:
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        path = Path(folder, f"colocation-{int(time.time())}.json")
        path.write_text(json.dumps(samples))
        print(f"# samples: {path}", file=sys.stderr)
