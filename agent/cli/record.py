"""`xpu-agent record`: writes this host as a folder or archive, complete or not at all."""

from __future__ import annotations

import argparse

from agent.cli.context import command_inputs, read_host_with_tapes
from agent.recording.writer import write_recording


def run(arguments: argparse.Namespace) -> int:
    """Write a recording of this host, or of a recorded one."""
    inputs = command_inputs(arguments)
    _, tapes = read_host_with_tapes(inputs)
    report = write_recording(
        arguments.out,
        inputs.host_source,
        tapes,
        pseudonymise=arguments.pseudonymise,
        pods=arguments.pods,
    )
    answers = f", answers of {', '.join(report.tapes)}" if report.tapes else ""
    names = ", names replaced" if report.is_pseudonymised else ""
    print(f"{report.path}: {report.files} files, {report.size_bytes} bytes{answers}{names}")
    if report.error_entries:
        print(f"{report.error_entries} files refused to be read; their errors are recorded")
    return 0
