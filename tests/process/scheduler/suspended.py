"""`xpu-scheduler` on a machine that may be suspended.

Its clock stands still while the process is stopped. Otherwise a process that was stopped sees later
for how long; one whose virtual machine was suspended does not.
"""

from __future__ import annotations

import sys
import time

LONGEST_STEP_S = 5.0  # between two looks at the clock of a replica that runs: it renews its lease


class SuspendedClock:
    """Monotonic time without the steps in which nobody looked."""

    def __init__(self) -> None:
        self._read_s = time.monotonic
        self._last_s = self._read_s()
        self._stopped_s = 0.0

    def monotonic(self) -> float:
        """Return the seconds as the suspended machine counts them."""
        now_s = self._read_s()
        if now_s - self._last_s > LONGEST_STEP_S:
            self._stopped_s += now_s - self._last_s
        self._last_s = now_s
        return now_s - self._stopped_s


if __name__ == "__main__":
    time.monotonic = SuspendedClock().monotonic
    from plugins.scheduler.cli import main

    sys.exit(main())
