"""What is told of each file that was changed, or that the kernel would not have changed."""

from __future__ import annotations

import msgspec

REASON = "runtime-hooks"  # Koordinator's, which people search for


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """One write. `errno` is 0 for one that took; with mode plan `planned` is set, nothing done."""

    wall_s: float
    owner: str  # the hook
    reason: str = REASON
    message: str = ""  # `set container cpuset to 0-3`
    path: str  # of the file, below the host's root
    key: str  # version 1's name
    old: str = ""
    new: str = ""
    errno: int = 0
    planned: bool = False
