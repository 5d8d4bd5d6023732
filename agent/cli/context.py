"""Builds the inputs of a command from its options."""

from __future__ import annotations

import argparse
import sys

from agent.app.composition import AgentInputs, create_inputs
from agent.app.oneshot import inspect_host
from agent.cli.options import command_settings, pod_list_file
from agent.clock import Clock, ManualClock, SystemClock
from agent.command_line import ExitStatus
from agent.log import configure_logging
from agent.recording.host_source import HostSource, open_host
from agent.snapshot.node import NodeSnapshot
from agent.workers.tape import TapeWriter


def host_clock(host_source: HostSource) -> Clock:
    """Return the machine's clock; for a recorded host one that stands at the recording's time.

    A command therefore prints the same about a recording at any time.
    """
    if host_source.spec is None:
        return SystemClock()
    return ManualClock() if host_source.wall_s is None else ManualClock(wall_s=host_source.wall_s)


def command_inputs(arguments: argparse.Namespace) -> AgentInputs:
    """Return the inputs of a command that reads the host once."""
    settings = command_settings(arguments)
    configure_logging(settings.log.level)
    host_source = open_host(arguments.host)
    return create_inputs(settings, host_source, host_clock(host_source), pod_list_file(arguments))


def report_silent_vendors(snapshot: NodeSnapshot, status: int) -> int:
    """Name the vendors that did not answer; return 3 if there are any, else `status`."""
    silent = [vendor for vendor in snapshot.vendors if vendor.state != "ready"]
    for state in silent:
        text = f"vendor {state.vendor} did not answer: {state.message}"
        print(f"xpu-agent: {text}; its part is missing here", file=sys.stderr)
    return ExitStatus.CANNOT if silent else status


TAPE_SAMPLES = 3


def read_host_with_tapes(
    inputs: AgentInputs, *, usage: bool = False
) -> tuple[NodeSnapshot, dict[str, bytes]]:
    """Inspect the host; return the snapshot and the answers of each vendor's library."""
    tapes: dict[str, bytearray] = {name: bytearray() for name in inputs.vendors}
    writers = {name: TapeWriter(name, tape.extend) for name, tape in tapes.items()}
    snapshot = inspect_host(inputs, samples=TAPE_SAMPLES, usage=usage, tapes=writers)
    # an answer from sysfs alone is in the recorded files already
    answers = {
        state.vendor: bytes(tapes[state.vendor])
        for state in snapshot.vendors
        if state.state == "ready" and state.inventory.value and state.inventory.value.library
    }
    return snapshot, answers
