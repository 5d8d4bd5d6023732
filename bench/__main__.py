"""Run every bench, or those named on the command line: `python -m bench [NAME …]`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator

from agent.app.threads import tune_interpreter
from bench.harness import Row, report

BENCHES = (
    "cgroup_read",
    "cgroup_read_hybrid",
    "cgroup_read_kernel",
    "cgroup_churn",
    "nodemetric",
    "percentiles",
    "prediction",
    "device_scan",
    "exposition",
    "page",
    "startup",
    "import_budget",
    "loop_hold",
    "steady_state",
    "soak",
    "fault_to_cr",
    "nvml.sampling",
    "cluster.watch_cost",
    "cluster.write_ack",
    "cluster.first_device",
    "cluster.outage",
    "cluster.steady",
    "cluster.idle_traffic",
    "cluster.fault_to_ack",
    "qos.values",
    "qos.cycle",
    "containers.nri_latency",
    "containers.nri_synchronize",
    "containers.preferred",
    "containers.allocate_latency",
    "scheduler.calls",
    "scheduler.binding",
    "scheduler.placement",
    "qos.slo_reaction",
    "qos.psi_reaction",
    "qos.colocation",
)


def rows(names: tuple[str, ...]) -> Iterator[Row]:
    """Yield the rows of the benches named."""
    for name in names:
        yield from importlib.import_module(f"bench.{name}").rows()


def main() -> int:
    """Return 0 when every gate holds, 1 when one does not, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(BENCHES)}")
    names = tuple(parser.parse_args().names) or BENCHES
    if unknown := [name for name in names if name not in BENCHES]:
        print(f"no bench {unknown[0]!r}; there are: {' '.join(BENCHES)}", file=sys.stderr)
        return 2
    tune_interpreter()  # as the agent does: a collection of garbage is part of what work costs
    # an installed agent comes with its bytecode; the warm-up of each figure makes it here
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return 0 if report(rows(names)) else 1


if __name__ == "__main__":
    sys.exit(main())
