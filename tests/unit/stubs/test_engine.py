"""The engine of the stub libraries does what a scenario says, also when it changes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.stubs.stub import Stub

BASE = ("count 2", "mlu.0.uuid 10001012-1916-0000-0000-000000000000", "mlu.0.power 30")
HANDLE = 16384

# what a process does with the library that its first argument names
PRELUDE = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
power = (ctypes.c_int32 * 21)()
def ask(handle=16384):
    return lib.cndevGetDevicePowerInfo(power, handle), power[0]
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    """Return a card of which a few facts are known."""
    created = Stub("cndev", tmp_path, traced=True)
    created.play(*BASE)
    return created


def run(stub: Stub, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on the stub in a process that it may crash."""
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(stub.path)],
        env=stub.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("lines", "answers"),
    [
        ((), "(0, 30)"),
        (("mlu.0.power 31",), "(0, 31)"),
        (("mlu.0.power",), "(10, 0)"),
        (("call.cndevGetDevicePowerInfo.ret 18",), "(18, 0)"),
        (("call.cndevGetDevicePowerInfo.ret 18 x1",), "(18, 0) (0, 30)"),
        (
            ("call.cndevGetDevicePowerInfo.ret 7", "call.cndevGetDevicePowerInfo.ret 18 x1"),
            "(18, 0) (7, 0)",
        ),
        (("call.cndevGetDevicePowerInfo.0.ret 18",), "(18, 0)"),
        (("call.cndevGetDevicePowerInfo.1.ret 18",), "(0, 30)"),
        (("call.*.0.ret 18",), "(18, 0)"),
        (("call.cndevGetDevicePowerInfo.fill 255",), "(0, -1)"),
        (("handles 99",), "(6, 0)"),
    ],
)
def test_a_call_answers_as_its_lines_say(stub: Stub, lines: tuple[str, ...], answers: str) -> None:
    stub.play(*BASE, *lines)
    requests = ", ".join("ask()" for _ in answers.split(") "))
    assert run(stub, f"print({requests})").stdout.strip() == answers


def test_a_scenario_is_read_again_when_it_changed(stub: Stub) -> None:
    changed = stub.folder / "other"
    changed.write_text("count 1\nmlu.0.power 77\n")
    replace = f"import os; os.replace({str(changed)!r}, {str(stub.scenario)!r})"
    assert run(stub, f"print(ask())\n{replace}\nprint(ask())").stdout.split("\n")[:2] == [
        "(0, 30)",
        "(0, 77)",
    ]


def test_a_crash_takes_the_process(stub: Stub) -> None:
    stub.play(*BASE, "call.cndevGetDevicePowerInfo.abort 1")
    assert run(stub, "ask()").returncode == -6


def test_a_late_call_answers_after_its_time(stub: Stub) -> None:
    stub.play(*BASE, "call.cndevGetDevicePowerInfo.sleep_ms 120")
    began_s = time.monotonic()
    assert run(stub, "print(ask())").stdout.strip() == "(0, 30)"
    assert time.monotonic() - began_s >= 0.12


def test_a_hang_ends_when_the_scenario_no_longer_says_so(stub: Stub) -> None:
    stub.play(*BASE, "call.cndevGetDevicePowerInfo.hang 1")
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + "print(ask())", str(stub.path)],
        env=stub.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        while "cndevGetDevicePowerInfo" not in stub.counts():
            assert process.poll() is None
        stub.play(*BASE)
        assert process.communicate(timeout=PATIENCE_S)[0].strip() == "(0, 30)"


def test_calls_are_counted_across_processes_and_traced(stub: Stub) -> None:
    run(stub, "ask(), ask()")
    run(stub, "ask(), ask(7)")
    assert stub.counts() == {"cndevGetDevicePowerInfo": 4}
    assert stub.trace()[2:] == ["cndevGetDevicePowerInfo 0", "cndevGetDevicePowerInfo"]


def test_an_event_reaches_waiting_callers_at_once(stub: Stub) -> None:
    script = """
event = (ctypes.c_int32 * 26)(6)
handle = ctypes.c_void_p()
lib.cndevEventHandleCreate(ctypes.byref(handle))
lib.cndevRegisterEvents(handle, ctypes.c_uint64(1), 16384)
print("ready", flush=True)
print(lib.cndevEventWait(handle, event, 20000), event[1], hex(event[2]), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script, str(stub.path)],
        env=stub.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stub.happen("0 0x2f")
        assert process.stdout.readline() == "0 16384 0x2f\n"


def test_a_symbol_can_be_left_out(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(Stub("cndev", tmp_path, without=("cndevGetECCInfo",)).path))
    assert hasattr(library, "cndevInit")
    assert not hasattr(library, "cndevGetECCInfo")
