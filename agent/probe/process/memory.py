"""How much memory a process holds."""

from __future__ import annotations

import os

_FILE_BYTES = 128  # of seven numbers


def resident_bytes(pid: int) -> int | None:
    """Return the resident size of a process; `None` if it is gone or may not be looked at."""
    try:
        fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pages = os.read(fd, _FILE_BYTES).split()[1:2]
    except OSError:
        return None
    finally:
        os.close(fd)
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else None
