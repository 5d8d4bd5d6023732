"""How a worker process is started: its command line and its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent.probe.call_journal import Call

# The worker finds its own interpreter's packages, then ours: nothing of the caller's directory
# or environment decides what it imports. Otherwise this is `python -m agent.probe.worker`.
# msgspec takes from `typing_extensions`, if it is there, what `typing` has as well: a fifth of a
# worker's start, so it is hidden while msgspec loads. Nothing
# that a start makes is garbage: the collector begins when the vendor is open.
_BOOT = (
    "import gc, sys; gc.disable(); sys.path.append(sys.argv.pop(1)); "
    "sys.modules['typing_extensions'] = None; import msgspec; "
    "del sys.modules['typing_extensions']; "
    "from agent.probe.worker import main; main(sys.argv[1:])"
)
_ROOT = Path(__file__).parents[3]  # where `agent` and `plugins` are
_KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "LANG", "TZ", "MALLOC_ARENA_MAX"),
    *("DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"),  # as NVIDIA's device plug-in
)


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start."""

    vendor: str
    host_spec: str | None = None  # a recorded host; None: this machine
    tape: str | None = None  # a file to play instead of the vendor's answers
    settings: Mapping[str, object] = msgspec.field(default_factory=dict)  # the vendor's own section
    events: bool = True
    journal: str = ""  # path of the file for the call in progress; empty: none
    record: bool = True  # False: another process keeps that file
    hung: Call | None = None  # the call that ended the process before this one

    def arguments(self) -> tuple[str, ...]:
        """Return the command line."""
        given = (("--host", self.host_spec), ("--tape", self.tape))
        options = (part for name, value in given if value is not None for part in (name, value))
        return (
            *(sys.executable, "-I", "-c", _BOOT, str(_ROOT)),
            *("--vendor", self.vendor, "--parent", str(os.getpid()), *options),
        )

    def environment(self) -> dict[str, str]:
        """Return the whole environment. `library_dirs` go first on the dynamic linker's path.

        The linker reads it once, at the start of the process.
        """
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        wanted = self.settings.get("library_dirs")
        dirs = [str(d) for d in wanted] if isinstance(wanted, list | tuple) else []
        inherited = kept.get("LD_LIBRARY_PATH")
        if dirs:
            kept["LD_LIBRARY_PATH"] = ":".join([*dirs, inherited] if inherited else dirs)
        return kept
