"""What both sides of the virtual machine know: who runs in it, and how much it uses."""

from __future__ import annotations

KINDS = ("busy", "held", "throttled")
POD = {kind: f"{number:08x}-1111-4111-8111-111111111111" for number, kind in enumerate(KINDS, 1)}
CONTAINER = {kind: f"{number:064x}" for number, kind in enumerate(KINDS, 0xA)}
SLICE = "kubepods"

BUSY_S = 1.0  # of CPU time
QUOTA = "10000 50000"  # microseconds in each period, and the period
QUOTA_BUSY_S = 0.2  # of CPU time: twenty periods

HELD_NODE = 2
HELD_BYTES = 32 << 20
FILE = "pages"  # in the share: its page cache is the container's
FILE_BYTES = 16 << 20
