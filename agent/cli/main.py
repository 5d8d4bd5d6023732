"""Entry point: parses the command line, runs one command, turns errors into a line and a status.

It also prepares the standard streams. Every start loads this module first, so it imports nothing
that is slow to load.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys

from agent.cli.parser import ExitStatus, build_parser
from agent.errors import AgentError, BadConfig

# command: module and function; a module is imported when its command is used
COMMANDS = {
    "run": ("agent.cli.run", "run"),
    "devices": ("agent.cli.devices", "devices"),
    "topology": ("agent.cli.topology", "topology"),
    "snapshot": ("agent.cli.render", "snapshot"),
    "render": ("agent.cli.render", "render"),
    "plan": ("agent.cli.plan", "plan"),
    "record": ("agent.cli.record", "run"),
    "rescan": ("agent.cli.admin", "rescan"),
    "release": ("agent.cli.admin", "release"),
    "clear": ("agent.cli.admin", "clear"),
    "explain": ("agent.cli.admin", "explain"),
    "doctor": ("agent.cli.doctor", "doctor"),
    "cgroup": ("agent.cli.cgroup", "cgroup"),
    "restore": ("agent.cli.restore", "restore"),
    "config": ("agent.cli.reference", "config"),
    "metrics": ("agent.cli.reference", "metrics"),
    "version": ("agent.cli.reference", "version"),
    "completion": ("agent.cli.reference", "completion"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    runs = arguments[:1] == ["run"]
    prepare_streams(discard=runs)
    try:
        status = _parse_and_run(arguments, only_run=runs)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as with `| head`
        _discard_output()
        return ExitStatus.OK
    except OSError as error:  # those of the host's files are errors of ours
        _discard_output()
        return _print_error(
            f"{error.filename or 'standard output'}: {error.strerror}", ExitStatus.CANNOT
        )
    return status


def _parse_and_run(argv: list[str], *, only_run: bool) -> int:
    try:
        arguments = build_parser(only_run=only_run).parse_args(argv)
    except SystemExit as end:  # after --help, --version and wrong use
        return end.code if isinstance(end.code, int) else ExitStatus.OK
    module, name = COMMANDS[arguments.command]
    return _run(getattr(importlib.import_module(module), name), arguments)


def _discard_output() -> None:
    """Discard the buffered output: otherwise the end of the interpreter fails on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(command: object, arguments: argparse.Namespace) -> int:
    assert callable(command)  # noqa: S101 - the table above names functions
    try:
        return int(command(arguments))
    except BadConfig as error:
        return _print_error(str(error), ExitStatus.WRONG_USE)
    except AgentError as error:
        return _print_error(str(error), ExitStatus.CANNOT)
    except KeyboardInterrupt:
        return 130


def _print_error(message: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads it; the exit status has the result
        print(f"xpu-agent: {message}", file=sys.stderr, flush=True)
    return status


def prepare_streams(*, discard: bool) -> None:
    """Open closed standard streams, and escape characters that their encoding lacks.

    The next file or socket would otherwise get the number of a closed stream. Output to a closed
    standard output is an error, as for other commands; with `discard` it is dropped.
    """
    output = os.O_WRONLY if discard else os.O_RDONLY
    for number, flags in ((0, os.O_RDONLY), (1, output), (2, os.O_WRONLY)):
        if not _is_open(number):
            lowest = os.open(os.devnull, flags)  # free number, which is this one
            os.set_inheritable(lowest, True)  # noqa: FBT003 - it takes no keyword
    # Python has no object for a stream that was closed
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = sys.stdout or _writer(1)
    sys.stderr = sys.stderr or _writer(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _writer(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
