"""Runs a maker's command-line tool in the worker, for facts that the maker's library lacks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence

from agent.errors import VendorFault
from plugins.shared.library_file import refuse_untrusted

MAX_OUTPUT = 1 << 20  # bytes of an output that are used
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH")  # that a tool gets of the worker's variables


class ToolFailed(VendorFault):
    """The tool could not be run, took too long, or ended with an error."""


class ToolTimedOut(ToolFailed):
    """The tool took too long and was killed."""


def find_tool(paths: Iterable[str]) -> str | None:
    """Return the real path of the first tool that only root or this process's user can replace."""
    for path in paths:
        if os.access(path, os.X_OK) and os.path.isfile(path):
            resolved = os.path.realpath(path)
            try:
                refuse_untrusted(resolved)
            except VendorFault:
                continue
            return resolved
    return None


def run_tool(path: str, arguments: Sequence[str], timeout_s: float) -> str:
    """Return what the tool prints; raises `ToolFailed`, also if it takes longer than `timeout_s`.

    A tool that takes too long is killed.
    """
    if timeout_s <= 0:
        raise ToolFailed(f"{path}: no time left")
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    try:
        result = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ToolTimedOut(f"{path}: no answer within {timeout_s:.1f} s") from error
    except OSError as error:
        raise ToolFailed(f"{path}: {type(error).__name__}: it tells nothing now") from error
    if result.returncode:
        raise ToolFailed(f"{path}: it ended with {result.returncode}")
    return result.stdout[:MAX_OUTPUT].decode("utf-8", "replace")
