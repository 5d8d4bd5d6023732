"""`xpu-agent record`: asks the vendors once more, writes the recording, says what is in it."""

from __future__ import annotations

import argparse

from agent.cli.context import parts_of
from agent.cli.record import record as write_recording
from agent.node.look import look
from agent.probe.tape import TapeWriter

SAMPLES = 3


def record(arguments: argparse.Namespace) -> int:
    """Write a recording of this host, or of a recorded one."""
    parts = parts_of(arguments)
    tapes: dict[str, bytearray] = {name: bytearray() for name in parts.vendors}
    writers = {name: TapeWriter(name, tape.extend) for name, tape in tapes.items()}
    snapshot = look(parts, samples=SAMPLES, tapes=writers)
    # what sysfs alone tells is in the files; a tape would only freeze it
    kept = {
        state.vendor: bytes(tapes[state.vendor])
        for state in snapshot.vendors
        if state.state == "ready" and state.inventory.value and state.inventory.value.library
    }
    report = write_recording(
        arguments.out,
        parts.opened,
        kept,
        pseudonymise=arguments.pseudonymise,
        pods=arguments.pods,
    )
    answers = f", answers of {', '.join(report.tapes)}" if report.tapes else ""
    names = ", names replaced" if report.pseudonymised else ""
    print(f"{report.path}: {report.files} files, {report.size_bytes} bytes{answers}{names}")
    if report.refused:
        print(f"{report.refused} files refused to be read; their errors are recorded")
    return 0
