"""Polls chips one after the other on a separate thread, for calls that block or may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from plugins.vendors.ascend.library.chip import Chip
from plugins.vendors.ascend.library.dcmi import Dcmi

PollChip = Callable[[str, Chip], None]  # called with the key of the device


class ChipPollThread:
    """A thread that starts when it has chips. A call that hangs stops this thread only."""

    def __init__(self, name: str, every_s: float, poll: PollChip) -> None:
        self._name = name
        self._every_s = every_s  # from the end of a round to the start of the next
        self._poll = poll
        self._chips: tuple[tuple[str, Chip], ...] = ()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def set_chips(self, dcmi: Dcmi, chips: Iterable[tuple[str, int, int]]) -> None:
        """Set the chips to poll, by key, card and number."""
        chips_by_id = {(key, chip.card, chip.number): chip for key, chip in self._chips}
        # separate `Chip` objects for this thread, because a `Chip` is not thread-safe
        pairs = ((chip_id, chips_by_id.get(chip_id)) for chip_id in chips)
        self._chips = tuple((p[0], chip or Chip(dcmi, *p[1:])) for p, chip in pairs)
        if self._thread is None and self._chips:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Tell the thread to end after its current call."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            for key, chip in self._chips:
                if not self._closed:
                    chip.begin_round()
                    self._poll(key, chip)
            self._wake.wait(self._every_s)
