"""Reads the state of chips' network ports and optical modules from the driver's `hccn_tool`.

DCMI has no calls for these values. The tool is run on a separate thread, in rounds that are far
apart, because each run starts a process that talks to the firmware.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from agent.clock import SYSTEM_CLOCK, Clock
from plugins.shared.tool import ToolFailed, ToolTimedOut, find_tool, run_tool

PLACE = "/usr/local/Ascend/driver/tools/hccn_tool"
DEADLINE_S = 4.0  # of one run
LANES = range(4)  # of an optical module
_OPTIONS = ("-link", "-speed", "-link_stat", "-optical")
_MEGA = 1_000_000
_MILLI = 1e-3

_LINK = re.compile(r"^\s*link status: *(UP|DOWN)\s*$", re.M)
_SPEED = re.compile(r"^\s*Speed: *([0-9]{1,7}) *Mb/s\s*$", re.M)
_LINK_UPS = re.compile(r"link up count *: *([0-9]{1,12})\s*$", re.M)
_PRESENT = re.compile(r"^\s*present *: *(present|not present)\s*$", re.M)
_FIGURE = r"^\s*{name} *: *(-?[0-9]{{1,6}}(?:\.[0-9]{{1,6}})?) *{unit}\s*$"
_TEMPERATURE = re.compile(_FIGURE.format(name="temperature", unit="C"), re.M)
_VOLTAGE = re.compile(_FIGURE.format(name="Vcc", unit="mV"), re.M)
_POWERS = {
    (direction, lane): re.compile(_FIGURE.format(name=f"{word} Power{lane}", unit="mW"), re.M)
    for direction, word in (("tx", "Tx"), ("rx", "Rx"))
    for lane in LANES
}

RunTool = Callable[[str, Sequence[str], float], str]


class NetworkLink(msgspec.Struct, frozen=True, kw_only=True):
    """A chip's network port and its optical module; `None` is what the tool does not tell."""

    at_s: float  # monotonic
    is_up: bool | None = None
    bytes_per_second: float | None = None
    link_ups: int | None = None  # how often the link came up
    has_module: bool | None = None
    module_celsius: float | None = None
    module_volts: float | None = None
    lane_watts: Mapping[tuple[str, int], float] = {}  # by direction and lane


def read_link(run: Callable[[str], str], at_s: float) -> NetworkLink:
    """Return a chip's link; `run` returns the tool's answer to an option, or raises `ToolFailed`.

    A query that is refused costs its own values only; after one that hangs no other is made.
    """
    answers = dict.fromkeys(_OPTIONS, "")
    for option in _OPTIONS:
        try:
            answers[option] = run(option)
        except ToolTimedOut:
            break
        except ToolFailed:
            continue
    status, speed = _LINK.search(answers["-link"]), _number(_SPEED, answers["-speed"])
    link_ups = _number(_LINK_UPS, answers["-link_stat"])
    optical = answers["-optical"]
    present = _PRESENT.search(optical)
    volts = _number(_VOLTAGE, optical)
    watts = {place: _number(pattern, optical) for place, pattern in _POWERS.items()}
    return NetworkLink(
        at_s=at_s,
        is_up=None if status is None else status[1] == "UP",
        bytes_per_second=None if speed is None else speed * _MEGA / 8,
        link_ups=None if link_ups is None else int(link_ups),
        has_module=None if present is None else present[1] == "present",
        module_celsius=_number(_TEMPERATURE, optical),
        module_volts=None if volts is None else volts * _MILLI,
        lane_watts={
            place: milliwatts * _MILLI
            for place, milliwatts in watts.items()
            if milliwatts is not None
        },
    )


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return None if match is None else float(match[1])


class LinkWatch:
    """Asks the tool about one chip after the other. A chip whose links are old has none.

    A run that takes too long is killed, and its chip is left out of that round.
    """

    def __init__(
        self,
        driver_root: str,
        interval_s: float,
        clock: Clock = SYSTEM_CLOCK,
        run: RunTool = run_tool,
    ) -> None:
        """With an `interval_s` of 0 the tool is never run."""
        self._path = driver_root.rstrip("/") + PLACE
        self._interval_s = interval_s
        self._clock = clock
        self._run = run
        self._numbers: Mapping[str, int] = {}
        self._links: dict[str, NetworkLink] = {}
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def watch(self, numbers: Mapping[str, int]) -> None:
        """Set the chips to ask about: the number of `/dev/davinci<N>` by key."""
        self._numbers = dict(numbers)
        if self._thread is None and self._numbers and self._interval_s > 0:
            self._thread = threading.Thread(target=self._poll, name="hccn_tool", daemon=True)
            self._thread.start()

    def link(self, key: str) -> NetworkLink | None:
        """Return a chip's link as it was two intervals ago at most; `None` if it is unknown."""
        link = self._links.get(key)
        age_s = 2 * self._interval_s + DEADLINE_S
        is_fresh = link is not None and self._clock.monotonic() - link.at_s <= age_s
        return link if is_fresh else None

    def close(self) -> None:
        """Tell the thread to end after its current run."""
        self._is_closed = True
        self._wake.set()

    def read_round(self) -> None:
        """Ask about every chip once; nothing where the tool is missing or not to be trusted."""
        path = find_tool((self._path,))
        for key, number in self._numbers.items() if path is not None else ():
            if self._is_closed:
                return
            run = partial(self._query, path or "", number)
            self._links[key] = read_link(run, self._clock.monotonic())

    def _query(self, path: str, number: int, option: str) -> str:
        return self._run(path, ("-i", str(number), option, "-g"), DEADLINE_S)

    def _poll(self) -> None:
        while not self._is_closed:
            self.read_round()
            self._wake.wait(self._interval_s)
