"""Every function of the tree that parses one text: only errors of ours come out of it.

The functions are found by their names and types, so that a new one is tried, too.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

import agent
import plugins
from agent.cgroup import ledger
from agent.cgroup import usage_files as cgroup_parse
from agent.config.address import parse_listen_address
from agent.errors import AgentError
from agent.kube.api import decode_object
from agent.usage import shared_devices
from agent.verification import procfs
from agent.wire_formats import quantities
from tests.fault.fuzz.mutating import LARGE, NASTY

NAMES = re.compile(r"(parse|decode|read)(_[a-z0-9_]+)?")
DIGITS = re.compile(rb"[0-9]+")
MANY = b"9" * 5000  # more than Python turns into a number
DEEP = b"[" * 100_000
FIXED = ("read_platform",)  # take a structure of a library, which has one size
MORE: tuple[Callable[..., object], ...] = (
    *(cgroup_parse.parse_counter, cgroup_parse.parse_cpu_stat_v2, cgroup_parse.parse_throttling_v1),
    *(
        cgroup_parse.parse_memory_stat_v1,
        cgroup_parse.parse_memory_stat_v2,
        cgroup_parse.parse_memory_numa_v1,
    ),
    *(
        cgroup_parse.parse_numa_nodes_v1,
        cgroup_parse.parse_numa_nodes_v2,
        cgroup_parse.parse_pressure,
    ),
    *(
        ledger.decode_line,
        quantities.parse_amount,
        shared_devices.parse_parent_pid,
        procfs.parse_start_ticks,
    ),
)
SAMPLES = (
    b"cpu0 1 2 3 4 5 6 7 8\ncpu  1 2 3 4 5 6 7 8 9 0\nbtime 1700000000\n",
    b"MemTotal: 100 kB\nMemFree: 50 kB\nMemAvailable: 60 kB\nHugePages_Total: 3\n",
    b"Node 0 MemTotal: 100 kB\nNode 0 MemFree: 50 kB\nNode 0 Active(file): 1 kB\n"
    b"Node 0 Inactive(file): 1 kB\nNode 0 SReclaimable: 1 kB\n",
    b"usage_usec 5\nuser_usec 1\nnr_periods 1\nnr_throttled 2\n",
    b"nr_periods 1\nnr_throttled 2\nthrottled_time 3\n",
    b"total=5 N0=3 N1=2\nfile=1 N0=1\nanon=2 N0=2\nhierarchical_total=5 N0=3 N1=2\n"
    b"hierarchical_file=1 N0=1\nhierarchical_anon=2 N0=2\nhierarchical_unevictable=0 N0=0\n",
    b"anon N0=100 N1=200\nfile N0=5 N1=6\n",
    b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
    b"full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
    b"7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21\n",
    b"6,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n",
    b"NVRM: Xid (PCI:0000:3b:00): 145, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x1 0x2)\n",
    b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n",
    *(b"0-3,8\n", b"0-31:2/4", b"ff,00000000", b"195:0\n", b"0x10de\n", b"64 kB\n", b"16 GT/s\n"),
    *(b"0000:3b:00.0", b"[::1]:9316", b"127.0.0.1:9316", b"10 20 21\n", b"65536Mi", b"1e3", b"5m"),
    *(b"1h2m3s", b"4: ACTIVE\n", b"100 Gb/sec (4X EDR)\n", b"0x5\n", b"GPU-1::3", b"12"),
    b"mlx5_0 hca_handle=2 hca_object=max\n",
    b'{"kind": "List", "items": [{"metadata": {"name": "a"}, "spec": {"nodeName": "x1"}}]}',
    b'{"version": 1, "boot_id": "b", "policyName": "static", "defaultCpuSet": "0-3"}',
    b'{"kubeletconfig": {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "100m"}}}',
    b'{"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": "100"}}]}',
    b"12:memory:/kubepods/burstable/pod1/2\n0::/kubepods.slice/a.scope\n",
    b"Card 0 | 1 % | 40 C | 100 MiB / 200 MiB | v5.10.4\n",
)
WHOLE = (b"", b"\xff" * 40, b'"\xed\xa0\x80"', b"\xc2\xb2" * 9, b"\xd9\xa1" * 9, DEEP, MANY)


@cache
def parsers() -> dict[str, Callable[..., object]]:
    """Return the functions of one text, by their full names."""
    result = {f"{one.__module__}.{one.__qualname__}": one for one in MORE}
    for package in (agent, plugins):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "__main__" in info.name:
                continue
            for name, one in inspect.getmembers(importlib.import_module(info.name)):
                if NAMES.fullmatch(name) and name not in FIXED and _kind(one):
                    result[f"{one.__module__}.{name}"] = one
    return result


def _kind(parser: Callable[..., object]) -> str:
    """Return which type the one parameter has that must be given; empty: none of a text's."""
    if not inspect.isfunction(parser):
        return ""
    parameters = [
        parameter
        for parameter in inspect.signature(parser).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    kind = str(parameters[0].annotation) if len(parameters) == 1 else ""
    return kind if kind.split(" |", 1)[0] in ("str", "bytes") else ""


def hostile() -> Iterator[bytes]:
    """Yield whole inputs, and samples with one part that no sane writer would give it."""
    yield from WHOLE
    yield from (text.encode("utf-8", "surrogatepass") for text in (*NASTY, *LARGE))
    for sample in SAMPLES:
        yield sample
        for match in DIGITS.finditer(sample):
            for number in (MANY, b"99999999999999999999", b"1e999", b"-1", b"\xb2"):
                yield sample[: match.start()] + number + sample[match.end() :]
        for at in range(0, len(sample), 5):
            yield sample[:at] + b"\xff" + sample[at + 1 :]
            yield sample[:at] + b"\xed\xa0\x80" + sample[at:]
        yield sample.replace(b"[", DEEP, 1)
        yield sample.replace(b"{", b'{"a":' * 100_000, 1)


def test_parsers_are_found() -> None:
    assert len(parsers()) > 40
    assert {parse_listen_address, decode_object} <= set(parsers().values())


@pytest.mark.parametrize("name", sorted(parsers()))
def test_a_parser_returns_values_and_raises_only_errors_of_the_agent(name: str) -> None:
    parser = parsers()[name]
    text = _kind(parser).startswith("str")
    for data in hostile():
        try:
            parser(data.decode("utf-8", "surrogateescape") if text else data)
        except AgentError:
            continue
        except Exception as error:
            shown = data[:80] + b"..." if len(data) > 80 else data
            raise AssertionError(
                f"{type(error).__name__}: {error}"[:200] + f" for {shown!r}"
            ) from error
