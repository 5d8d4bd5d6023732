"""Process 1 of the virtual machine: does everything, leaves the facts in the share, ends it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.guest.machine_facts import UNREAD_FILES

SHARE = Path("/share")


def main() -> None:
    """Run each part that the command line names, in this order.

    A part that fails leaves its error in place of its facts.
    """
    from tests.guest.inside import (
        bench,
        devices,
        files,
        hotplug,
        limits,
        memory_reclaim,
        pods,
        resctrl,
        restore,
        session,
        suppression,
    )

    outside = Path(sys.argv[1])  # where the share is in this machine's cached root
    parts: dict[str, Callable[[], object]] = {
        "soft_roce": devices.add_soft_roce,
        "pods": lambda: pods.cgroupfs(outside),
        "session": lambda: session.facts(outside / UNREAD_FILES["session"]),
        "restore": lambda: restore.facts(outside / UNREAD_FILES["restore"]),
        "files": files.facts,
        "suppression": suppression.facts,
        "limits": lambda: limits.facts(outside / UNREAD_FILES["limits"]),
        "memory_reclaim": lambda: memory_reclaim.facts(outside / UNREAD_FILES["memory_reclaim"]),
        "devices": lambda: devices.facts(SHARE),
        "hotplug": lambda: hotplug.run(SHARE),
        "systemd": lambda: pods.systemd(outside),
        "resctrl": resctrl.facts,
        "bench": lambda: bench.rows(SHARE / "limit.so"),
    }
    for name, work in parts.items():
        if name in sys.argv[2:]:
            run_part(name, work)


def run_part(name: str, work: Callable[[], object]) -> None:
    """Write what a part returns, or its error, to the share."""
    began_s = time.monotonic()
    try:
        result: object = {"facts": work()}
    except Exception:  # noqa: BLE001 - the other parts have something to tell
        result = {"error": traceback.format_exc()}
    sys.stdout.write(f"{name}: {time.monotonic() - began_s:.1f} s\n")  # to the console
    sys.stdout.flush()
    new = SHARE / f"{name}.new"
    new.write_text(json.dumps(result))
    new.rename(SHARE / f"{name}.json")  # whole or not at all: the machine may be ended here


if __name__ == "__main__":
    try:
        main()
    finally:
        os.sync()
        Path("/proc/sysrq-trigger").write_text("o")
        while True:
            time.sleep(60)
