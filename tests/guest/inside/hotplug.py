"""Cards that come and go while the agent runs: what the kernel said, and when it was published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyudev
import yaml

from tests.guest.inside.devices import add_link
from tests.guest.machine_facts import work_s
from tests.guest.monitor import SET_IDS

DEADLINE_S = 60.0  # of each step
START_S = 120.0  # of the agent, on processors that are emulated
POLL_S = 0.02
SETTLED_S = 4.0  # until what came before is answered for sure
OUT = Path("/tmp/hotplug")
NIC = "eth4"
SPARE = "net4"  # the emulator's network for it


class Kernel:
    """Every event of the kernel with the moment it was heard, on a thread of its own."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, dict[str, str]]] = []
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        monitor.start()
        self._monitor = monitor
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for device in iter(self._monitor.poll, None):
            self.heard.append((time.monotonic(), dict(device.properties)))

    def first(self, after: int, action: str, subsystem: str) -> tuple[float, dict[str, str]]:
        """Wait for an event that came after so many others."""

        def find_event() -> tuple[float, dict[str, str]] | None:
            for at_s, event in self.heard[after:]:
                if (event.get("ACTION"), event.get("SUBSYSTEM")) == (action, subsystem):
                    return at_s, event
            return None

        answer: tuple[float, dict[str, str]] = until(find_event, f"{action} {subsystem}")
        return answer


def until(attempt: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Ask again until there is an answer."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        answer = attempt()
        if answer is not None:
            return answer
        time.sleep(POLL_S)
    raise TimeoutError(what)


class Emulator:
    """Asks the outside to plug and unplug."""

    def __init__(self, share: Path) -> None:
        self._share = share
        self._number = 0

    def ask(self, *commands: tuple[str, dict[str, object]]) -> None:
        """Have commands done, all or with an error."""
        name, self._number = f"{self._number}.json", self._number + 1
        (self._share / "ask.new").write_text(json.dumps(commands))
        (self._share / "ask.new").rename(self._share / f"ask-{name}")
        reports = self._share / f"told-{name}"
        until(lambda: reports.exists() or None, f"an answer to {commands}")
        error = json.loads(reports.read_text())
        if error is not None:
            raise RuntimeError(error)


@contextmanager
def agent() -> Iterator[str]:
    """Run the agent on this machine; yield its address."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "agent", "run", "--standalone", "--host", "/"),
            *("--out", str(OUT), "--listen", "127.0.0.1:9316"),
        ],
        env={**os.environ, "XPU_AGENT_DISCOVERY__RDMA__SOFT": "true"},
        stdin=subprocess.DEVNULL,
        stderr=(OUT.parent / "hotplug.log").open("w"),
    )
    try:
        yield "http://127.0.0.1:9316/"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


class Published:
    """What the agent has written, read again only when it has: reading costs what we measure."""

    def __init__(self) -> None:
        self._seen = 0
        self._entries: dict[str, dict[str, Any]] = {}

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the entries of the Device object by id; empty if there is none yet."""
        path = OUT / "device.yaml"
        try:
            changed = path.stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if changed != self._seen:
            self._seen, body = changed, yaml.load(path.read_text(), yaml.CSafeLoader)
            self._entries = {entry["id"]: entry for entry in body["spec"]["devices"]}
        return self._entries

    def minors(self) -> dict[str, int]:
        """Return the minors by id."""
        return {name: entry["minor"] for name, entry in self.entries().items()}

    def serves(self, name: str) -> bool:
        """Say whether a device is there and in service."""
        entry = self.entries().get(name)
        return entry is not None and bool(entry["health"])


def event_line(reason: str, address: str) -> str | None:
    """Return what the agent wrote as an event about a device; `None` if it has not."""
    try:
        lines = (OUT / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return None
    result = [line for line in lines if f'"{reason}"' in line and address in line]
    return str(json.loads(result[0])["message"]) if result else None


def snapshot(url: str, path: str) -> Any:
    """Return what the agent says over HTTP."""
    with urllib.request.urlopen(url + path, timeout=DEADLINE_S) as answer:
        return json.loads(answer.read())


def run(share: Path) -> dict[str, Any]:
    """Plug a NIC with soft-RoCE and a GPU, and unplug both; return what was seen and when."""
    OUT.mkdir()
    kernel, emulator, observations = Kernel(), Emulator(share), Published()
    try:
        with agent() as url:
            until(lambda: observations.entries() or None, "a Device object", START_S)
            until(lambda: _listening(url), "events that the agent hears", START_S)
            minors = [observations.minors()]
            nic = _nic(kernel, emulator, observations, minors)
            gpu = _gpu(kernel, emulator, url)
            minors.append(observations.minors())
            hotplug = snapshot(url, "api/v1/snapshot")["hotplug"]
            return {
                "minors": minors,
                "nic": nic,
                "gpu": gpu,
                "hotplug": hotplug,
                "work_s": work_s(),
            }
    except BaseException:
        sys.stdout.write((OUT.parent / "hotplug.log").read_text()[-4000:])
        raise


def _listening(url: str) -> Any:
    try:
        state = snapshot(url, "api/v1/snapshot")["hotplug"]
    except OSError:  # it does not serve yet
        return None
    return state if state["state"] == "listening" else None


def _nic(
    kernel: Kernel, emulator: Emulator, published: Published, minors: list[dict[str, int]]
) -> dict[str, Any]:
    entries, events = set(published.entries()), len(kernel.heard)
    card: dict[str, object] = {"driver": "virtio-net-pci", "id": "hot0", "bus": "dn03"}
    emulator.ask(("device_add", {**card, "netdev": SPARE}))
    kernel.first(events, "add", "pci")
    until(lambda: Path(f"/sys/class/net/{NIC}").exists() or None, NIC)
    Path(f"/sys/class/net/{NIC}/flags").write_text("0x1003")  # up
    time.sleep(SETTLED_S)
    events = len(kernel.heard)
    add_link(f"rxe_{NIC}", NIC)
    added_s, _ = kernel.first(events, "add", "infiniband")
    (name,) = until(
        lambda: set(published.entries()) - entries or None, "the NIC in the Device object"
    )
    shown_s = time.monotonic()
    minors.append(published.minors())
    time.sleep(SETTLED_S)
    events = len(kernel.heard)
    emulator.ask(("device_del", {"id": "hot0"}))
    removed_s, _ = kernel.first(events, "remove", "infiniband")
    until(lambda: None if published.serves(name) else True, "that the NIC is out of service")
    hidden_s = time.monotonic()
    kernel.first(events, "remove", "pci")
    return {"added_s": shown_s - added_s, "removed_s": hidden_s - removed_s}


def _gpu(kernel: Kernel, emulator: Emulator, url: str) -> dict[str, Any]:
    time.sleep(SETTLED_S)
    events = len(kernel.heard)
    card: dict[str, object] = {"driver": "pci-testdev", "id": "hot1", "bus": "dn13"}
    new = ("device_add", {**card, "membar": "1M"})
    emulator.ask(("stop", {}), new, (SET_IDS, {}), ("cont", {}))
    came_s, came = kernel.first(events, "add", "pci")
    address = came["PCI_SLOT_NAME"]
    until(lambda: event_line("DeviceAppeared", address), "the GPU among the devices")
    shown_s = time.monotonic()
    incomplete = until(lambda: event_line("DeviceIncomplete", address), "that it lacks its driver")
    devices = snapshot(url, "api/v1/devices")["devices"]
    events = len(kernel.heard)
    emulator.ask(("device_del", {"id": "hot1"}))
    left_s, _ = kernel.first(events, "remove", "pci")
    until(lambda: event_line("DeviceGone", address), "that the GPU is gone")
    return {
        "event": came,
        "incomplete": incomplete,
        "listed": next(device for device in devices if device["bus_id"] == address),
        "added_s": shown_s - came_s,
        "removed_s": time.monotonic() - left_s,
    }
