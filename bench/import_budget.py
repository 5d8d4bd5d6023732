"""What the agent loads: no heavy library, and how long its modules take.

The modules are counted in a process that has run one whole cycle in standalone mode.
Peer: the libraries of the agent imported eagerly. Limit: a bare interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from bench.counters import cost_metric
from bench.harness import Row, compare
from bench.startup import EAGER, HOST

FORBIDDEN = ("kubernetes", "numpy", "pydantic", "pynvml", "grpc", "structlog")
DEADLINE_S = 60.0

# prints the forbidden modules that are loaded, and the resident memory in bytes, after a cycle
_CYCLE = """
import json, sys
from agent.cli.main import main
status = main(["run", "--standalone", "--once", "--host", sys.argv[1], "--out", sys.argv[2]])
loaded = sorted(set(sys.argv[3].split(",")) & {name.split(".")[0] for name in sys.modules})
status_text = open("/proc/self/status").read()
peak = int(status_text.partition("VmHWM:")[2].split()[0])  # ru_maxrss remembers who started us
print(json.dumps({"status": status, "loaded": loaded, "count": len(sys.modules), "peak_kib": peak}))
"""
_IMPORTS = "import agent.cli.run, agent.app.application"


def one_cycle() -> dict[str, object]:
    """Return what is loaded after one cycle."""
    with tempfile.TemporaryDirectory(prefix="xpu-bench-") as folder:
        outcome = subprocess.run(
            [sys.executable, "-c", _CYCLE, str(HOST), folder, ",".join(FORBIDDEN)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
    result: dict[str, object] = json.loads(outcome.stdout.splitlines()[-1])
    if result["status"] != 0:
        raise RuntimeError(f"the cycle ended with {result['status']}: {outcome.stderr}")
    return result


def _number(value: object) -> float:
    assert isinstance(value, int)
    return float(value)


def _import_cost(code: str) -> float:
    from bench.counters import cost  # noqa: PLC0415 - counts children, so it is called late

    return cost(lambda: subprocess.run([sys.executable, "-c", code], check=True, timeout=30))


def rows() -> Iterator[Row]:
    """Yield forbidden modules, peak memory and the cost of importing."""
    result = one_cycle()
    loaded = result["loaded"]
    assert isinstance(loaded, list)
    yield Row(name="import_forbidden", metric="modules", subject=len(loaded), gate="subject<=0")
    yield Row(
        name="import_peak_memory",
        metric="KiB",
        subject=_number(result["peak_kib"]),
        gate="subject<=98304",
    )
    yield compare(
        "import_agent",
        cost_metric(),
        lambda: _import_cost(_IMPORTS),
        peer=lambda: _import_cost(EAGER),
        limit=lambda: _import_cost("pass"),
        rounds=3,
    )
