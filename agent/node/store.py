"""Where the current snapshot is: built in one place, swapped by reference."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from agent.model.snapshot import NodeSnapshot

Change = Callable[[NodeSnapshot], NodeSnapshot]


class SnapshotStore:
    """Holds one reference. Readers take it without a lock; writers replace it one at a time."""

    def __init__(self, first: NodeSnapshot) -> None:
        self._lock = threading.Lock()
        self.current = first

    def change(self, make: Change) -> NodeSnapshot:
        """Replace the snapshot by what `make` makes of it; keep `make` short, it holds the lock."""
        with self._lock:
            self.current = make(self.current)
            return self.current

    def put(self, **parts: object) -> NodeSnapshot:
        """Replace parts by name."""
        return self.change(lambda now: msgspec.structs.replace(now, **parts))
