"""Entry of the command line: parse, run one command, turn its errors into one line and a status."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys

from agent.cli.parser import build_parser
from agent.cli.streams import prepare_streams
from agent.errors import AgentError, BadConfig

DONE, BAD_NEWS, WRONG_USE, CANNOT = 0, 1, 2, 3

# command: module and function; a module is imported when its command is used
COMMANDS = {
    "run": ("agent.cli.run", "run"),
    "devices": ("agent.cli.reading", "devices"),
    "topology": ("agent.cli.reading", "topology"),
    "snapshot": ("agent.cli.reading", "snapshot"),
    "render": ("agent.cli.reading", "render"),
    "record": ("agent.cli.record", "run"),
    "rescan": ("agent.cli.node.acting", "rescan"),
    "release": ("agent.cli.node.acting", "release"),
    "clear": ("agent.cli.node.acting", "clear"),
    "doctor": ("agent.cli.node.doctor", "doctor"),
    "cgroup": ("agent.cli.node.cgroup", "cgroup"),
    "restore": ("agent.cli.node.restore", "restore"),
    "config": ("agent.cli.asking", "config"),
    "metrics": ("agent.cli.asking", "metrics"),
    "version": ("agent.cli.asking", "version"),
    "completion": ("agent.cli.asking", "completion"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = sys.argv[1:] if argv is None else argv
    runs = given[:1] == ["run"]
    prepare_streams(discard=runs)
    try:
        status = _parse_and_run(given, only_run=runs)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as with `| head`
        _drop_output()
        return DONE
    except OSError as error:  # those of the host's files are errors of ours
        _drop_output()
        return _complain(f"{error.filename or 'standard output'}: {error.strerror}", CANNOT)
    return status


def _parse_and_run(given: list[str], *, only_run: bool) -> int:
    try:
        arguments = build_parser(only_run=only_run).parse_args(given)
    except SystemExit as end:  # after --help, --version and wrong use
        return end.code if isinstance(end.code, int) else DONE
    _load_msgspec()
    module, name = COMMANDS[arguments.command]
    return _run(getattr(importlib.import_module(module), name), arguments)


def _drop_output() -> None:
    """Have what is still buffered written nowhere, or the interpreter's end fails on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _load_msgspec() -> None:
    """Load it without `typing_extensions`, from which it takes only what `typing` has as well.

    That module costs as much as all of our own up to the start of the workers.
    """
    before = sys.modules.get("typing_extensions")
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # how a module is hidden
    try:
        import msgspec  # noqa: F401, PLC0415 - see above
    finally:
        del sys.modules["typing_extensions"]
        if before is not None:
            sys.modules["typing_extensions"] = before


def _run(command: object, arguments: argparse.Namespace) -> int:
    assert callable(command)  # noqa: S101 - the table above names functions
    try:
        return int(command(arguments))
    except BadConfig as error:
        return _complain(str(error), WRONG_USE)
    except AgentError as error:
        return _complain(str(error), CANNOT)
    except KeyboardInterrupt:
        return 130


def _complain(words: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody reads it; the exit status has the result
        print(f"xpu-agent: {words}", file=sys.stderr, flush=True)
    return status
