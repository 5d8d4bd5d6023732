"""What the commands of both programs share: streams, errors, exit status, limit of open files.

An expected error is one line on standard error. Every start loads this module, so it imports
nothing that is slow to load.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import io
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

from agent.errors import AgentError, BadConfig

MAX_OPEN_FILES = 65536
INTERRUPTED = 130  # exit status after Ctrl-C, as shells know it


class ExitStatus(enum.IntEnum):
    """The exit statuses of all commands."""

    OK = 0
    PROBLEM_FOUND = 1
    WRONG_USE = 2
    CANNOT = 3


EXIT_STATUS = """exit status: 0 done and fine; 1 done, and the answer is bad news;
2 wrong use or settings; 3 could not do it (permission, unreadable host)"""


class OneLineParser(argparse.ArgumentParser):
    """Prints errors as one line: the error, and the command that shows help.

    Refuses empty arguments, which are mostly those of a variable that a script did not set.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - as its parent
        """Parse as the parent does, after a check for empty arguments."""
        words = sys.argv[1:] if args is None else list(args)
        for before, word in zip(("", *words), words, strict=False):
            if word == "":
                self.error(f"argument {before if before.startswith('-') else 'value'}: is empty")
            option, equals, value = word.partition("=")
            if option.startswith("--") and equals and not value:
                self.error(f"argument {option}: is empty")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> None:  # type: ignore[override]  # it exits, as its parent does
        """Print one line and exit with 2."""
        line = " ".join(f"{self.prog}: {message} (see {self.prog} --help)".splitlines())
        self.exit(ExitStatus.WRONG_USE, line + "\n")

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - as its parent
        """Print a message; an error of standard output is one, as it is for all commands."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)  # which ignores errors: the status has the result


def run_command_line(program: str, command: Callable[[], int], *, discard: bool = False) -> int:
    """Run a command and return its exit status; print an expected error as one line.

    `discard` drops output to a closed standard output, which is an error otherwise.
    """
    prepare_streams(discard=discard)
    try:
        status = _run(program, command)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as with `| head`
        _discard_output()
        return ExitStatus.OK
    except OSError as error:  # those of the host's files are errors of ours
        _discard_output()
        message = f"{_text(error.filename) or 'standard output'}: {error.strerror}"
        return _print_error(program, message, ExitStatus.CANNOT)
    return status


def _run(program: str, command: Callable[[], int]) -> int:
    try:
        return int(command())
    except SystemExit as end:  # of the parser, after --help, --version and wrong use
        return end.code if isinstance(end.code, int) else ExitStatus.OK
    except BadConfig as error:
        return _print_error(program, str(error), ExitStatus.WRONG_USE)
    except AgentError as error:
        return _print_error(program, str(error), ExitStatus.CANNOT)
    except KeyboardInterrupt:
        return INTERRUPTED


def _text(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else ""


def _discard_output() -> None:
    """Discard the buffered output: otherwise the end of the interpreter fails on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(program: str, message: str, status: int) -> int:
    """Print one line; the text of an error may have more, and names of files any character."""
    line = " ".join(f"{program}: {message}".splitlines())
    with contextlib.suppress(OSError):  # nobody reads it; the exit status has the result
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - the line of the command
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


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to `MAX_OPEN_FILES`, or to the hard limit.

    Child processes inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _writer(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
