"""Chips by the vendor's command, where the library cannot be loaded: less is known, and slowly."""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError, VendorFault
from agent.host.files import HostFiles
from agent.model.device import Health, HealthState, VendorDevice
from agent.model.inventory import DeviceSample, Inventory, Problem, Reading
from plugins import families
from plugins.bindings.dcmi.facts import ChipFacts
from plugins.bindings.dcmi.library import driver_version
from plugins.bindings.dcmi.npu_smi import WELL, Row, parse_info, parse_topo
from plugins.bindings.locate import refuse_untrusted
from plugins.vendors.ascend import identity
from plugins.vendors.ascend.describe import MIB, Described, chip_uuid, device
from plugins.vendors.ascend.links import joined
from plugins.vendors.ascend.sight import Sighting
from plugins.vendors.ascend.sight import device as sighted

PLACES = (
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/usr/local/Ascend/driver/tools/npu-smi",
)
DEADLINE_S = 4.0
EVERY_S = 30.0  # between two runs: each starts a process that asks all chips
_LINKS = ("HCCS", "HCCS_SW", "SIO", "UB")
Run = Callable[[str, tuple[str, ...]], str]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the command told."""

    chips: tuple[tuple[Described, Row], ...] = ()
    links: Mapping[tuple[str, str], str] | None = None  # by keys; None: not told


class NpuSmi:
    """The command of one host, run at most every half a minute."""

    def __init__(
        self,
        settings: Mapping[str, object],
        run: Run | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = str(settings.get("driver_root") or "/").rstrip("/")
        self._run = run or run_command
        self._clock = clock
        self._last: tuple[float, Told] | None = None
        self._joined: Mapping[tuple[str, str], str] | None = None
        self._asked_links = False  # they are asked once: they do not change

    def path(self) -> str | None:
        """Return the command, if there is one that only root could have put there."""
        for place in PLACES:
            path = self._root + place
            if os.path.isfile(path):
                try:
                    real = os.path.realpath(path)
                    refuse_untrusted(real)
                except VendorFault:
                    continue
                return real
        return None

    def ask(self, seen: tuple[Sighting, ...] = ()) -> Told | None:
        """Return what the command tells of what sysfs shows; `None` without a command.

        `AgentError` if it fails.
        """
        path = self.path()
        if path is None:
            return None
        if self._last is None or self._clock() - self._last[0] >= EVERY_S:
            rows = _numbered(parse_info(self._run(path, ("info",))))
            devices = {function.bus_id: function.device_id for function in seen}
            chips = tuple((described(row, devices.get(row.bus_id or "")), row) for row in rows)
            if not self._asked_links:
                self._asked_links = True
                self._joined = self._links(path, chips)
            self._last = (self._clock(), Told(chips=chips, links=self._joined))
        return self._last[1]

    def samples(self, seen: tuple[Sighting, ...]) -> tuple[DeviceSample, ...]:
        """Return the rows as samples; none if the command fails."""
        try:
            told = self.ask(seen)
        except AgentError:
            return ()
        return tuple(_sample(chip, row) for chip, row in told.chips) if told is not None else ()

    def _links(
        self, path: str, chips: tuple[tuple[Described, Row], ...]
    ) -> Mapping[tuple[str, str], str] | None:
        try:
            found = parse_topo(self._run(path, ("info", "-t", "topo")))
        except AgentError:
            return None  # not every model has the table
        keys = {chip.phy: chip.key for chip, _ in chips}
        return {
            (keys[a], keys[b]): word
            for (a, b), word in found.items()
            if word in _LINKS and a in keys and b in keys
        }


def run_command(path: str, arguments: tuple[str, ...]) -> str:
    """Run the command and return what it prints; `VendorFault` if it fails or takes too long."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            env=kept,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VendorFault(f"{path}: {type(error).__name__}: it tells nothing now") from error
    if done.returncode:
        raise VendorFault(f"{path}: it ended with {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def _numbered(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Leave out chips whose number the table does not tell: those of cards with several."""
    chips = Counter(row.card for row in rows)
    return tuple(row for row in rows if row.phy is not None or chips[row.card] == 1)


def described(row: Row, pci_device: int | None = None) -> Described:
    """Describe a row; without a column for it, the number of the card is that of its one chip."""
    facts = ChipFacts(
        name=row.name or None,
        bus_id=row.bus_id,
        hbm_mb=row.hbm_mb[1] if row.hbm_mb else None,
        ddr_mb=row.ddr_mb[1] if row.ddr_mb else None,
    )
    phy = row.phy if row.phy is not None else row.card
    return Described(
        card=row.card,
        number=row.chip,
        logic=phy,
        phy=phy,
        facts=facts,
        bus_id=row.bus_id,
        uuid=chip_uuid(facts, row.card, phy),
        family=identity.family(row.name, None, pci_device),
    )


def health(row: Row, phy: int) -> Health:
    """Return what the word in the health column comes to."""
    if row.health == WELL:
        return Health()
    state = HealthState.SUSPECT if row.health in ("Warning", "UNKNOWN") else HealthState.FAILED
    reason = "SubHealth" if state is HealthState.SUSPECT else "ChipFault"
    return Health(
        state=state, reason=reason, message=f"NPU {phy} is said to be {row.health[:40]!r}"
    )


def _sample(chip: Described, row: Row) -> DeviceSample:
    memory = row.hbm_mb or row.ddr_mb
    told = (
        (families.POWER, row.power_watts, ()),
        (families.TEMPERATURE, row.temperature_celsius, ("chip",)),
    )
    return DeviceSample(
        key=chip.key,
        core_percent=row.core_percent,
        memory_used_bytes=memory[0] * MIB if memory else None,
        memory_total_bytes=memory[1] * MIB if memory else None,
        readings=tuple(
            Reading(family=family.name, value=value, labels=labels)
            for family, value, labels in told
            if value is not None
        ),
        health=health(row, chip.phy),
    )


def by_command(
    told: Told, host: HostFiles, seen: tuple[Sighting, ...], problem: Problem
) -> Inventory:
    """Return what the command told, and functions that it did not."""
    chips = [chip for chip, _ in told.chips]
    listed = [device(chip, health(row, chip.phy), host) for chip, row in told.chips]
    known = {chip.bus_id for chip in chips}
    rest = [sighted(s, problem.reason, problem.message) for s in seen if s.bus_id not in known]
    found = joined(chips, told.links, None)
    return Inventory(
        vendor="ascend",
        devices=(*listed, *rest),
        links=found.links,
        driver_version=driver_version(host),
        facts=(("source", "npu-smi"),),
        problems=(problem, *found.problems),
        groups=found.groups,
        group_policy=found.policy,
    )


def by_sysfs(
    seen: tuple[Sighting, ...],
    remembered: Mapping[str, VendorDevice],
    host: HostFiles,
    problem: Problem,
) -> Inventory:
    """Return what sysfs shows, with the numbers that the chips had when their driver answered.

    Without them a chip would leave the Device object, and pods that hold it would hold nothing.
    """
    devices = []
    for function in seen:
        plain = sighted(function, problem.reason, problem.message)
        known = remembered.get(function.bus_id)
        if known is None or not plain.managed:
            devices.append(plain)
        else:
            devices.append(replace(known, health=plain.health, partitions=(), conditions=()))
    return Inventory(
        vendor="ascend",
        devices=tuple(devices),
        driver_version=driver_version(host),
        problems=(problem,),
    )
