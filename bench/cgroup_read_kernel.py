"""The cost of a usage cycle over real cgroups of version 2, in a virtual machine of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from bench.harness import Row
from tests.guest.machine import boot
from tests.guest.packages import CannotRun


def rows() -> Iterator[Row]:
    """Yield the rows that the machine measured; where none can be booted, print why."""
    try:
        ended = boot(("bench",))
    except CannotRun as error:
        print(f"cgroup_read_kernel is skipped: {error}", file=sys.stderr)
        return
    path = ended.share / "bench.json"
    text = path.read_text() if path.exists() else json.dumps({"error": ended.console[-3000:]})
    result: dict[str, Any] = json.loads(text)
    if "error" in result:
        raise RuntimeError(f"the bench failed in the virtual machine:\n{result['error']}")
    yield from (Row(**row) for row in result["facts"])
