"""Prepares the standard streams: open, and without errors for characters of another encoding.

Each start of the agent loads this module first, so it imports nothing that costs time.
"""

from __future__ import annotations

import io
import os
import sys


def prepare_streams(*, discard: bool) -> None:
    """Open closed standard streams, and escape characters that their encoding lacks.

    A closed descriptor would be taken by the next file or socket that is opened. What is written to
    a closed standard output is an error, as for other commands; with `discard` it is dropped.
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
