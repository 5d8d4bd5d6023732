"""The file with the vNPUs that the agent created; the agent destroys no other vNPU.

An entry is written before its vNPU is created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from agent.errors import AgentError
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Problem
from plugins.shared.state_file import JsonStateFile

FILE_NAME = "ascend-vnpus.json"
MAX_ENTRIES = 2048


class OwnershipNotWritten(AgentError):
    """The file cannot be written; no vNPU is created then, because it could not be found again."""


class OwnedVnpu(msgspec.Struct, frozen=True, kw_only=True):
    """One vNPU that the agent created, or is about to create (`vdev` is `None`)."""

    chip: str  # id of the chip's die
    template: str
    pod: str  # uid
    boot: str  # id of the boot; a reboot removes vNPUs
    vdev: int | None = None
    before: tuple[int, ...] = ()  # the chip's vNPUs before the creation


class VnpuOwnershipFile:
    """The stored list of the agent's vNPUs. Without a folder the agent creates no vNPU."""

    def __init__(self, folder: str, boot: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, tuple[OwnedVnpu, ...])
        self._boot = boot
        stored = self._file.load() or ()
        # without a boot id, a stored number may now belong to another vNPU
        self.entries = tuple(entry for entry in stored if boot and entry.boot == boot)

    @property
    def problem(self) -> Problem | None:
        """The problem of the file, if there is one."""
        return self._file.problem

    def record_intent(
        self, chip: str, template: str, pod: str, before: Collection[int]
    ) -> OwnedVnpu:
        """Write an entry for a vNPU to create; raises `OwnershipNotWritten`."""
        entry = OwnedVnpu(
            chip=chip, template=template, pod=pod, boot=self._boot, before=tuple(sorted(before))
        )
        self._write((*self.entries, entry))
        return entry

    def record_created(self, entry: OwnedVnpu, vdev: int) -> OwnedVnpu:
        """Write the number of a created vNPU; replaces an old entry with that number.

        The driver gives a number again only if the vNPU that had it is gone.
        """
        now = replace(entry, vdev=vdev, before=())
        same = (now.chip, now.vdev)
        others = (e for e in self.entries if e != entry and (e.chip, e.vdev) != same)
        self._write((*others, now))
        return now

    def remove(self, entry: OwnedVnpu) -> None:
        """Remove an entry whose vNPU was destroyed or never created."""
        self._write(tuple(e for e in self.entries if e != entry))

    def _write(self, entries: tuple[OwnedVnpu, ...]) -> None:
        newest = entries[-MAX_ENTRIES:]
        if not self._file.save(newest):
            raise OwnershipNotWritten(self._file.error)
        self.entries = newest


def orphaned_vnpus(entries: Collection[OwnedVnpu], pods: Collection[str]) -> tuple[OwnedVnpu, ...]:
    """Return the entries of pods that no longer exist."""
    return tuple(e for e in entries if e.vdev is not None and e.pod not in pods)


def with_owners(
    devices: Iterable[VendorDevice], entries: Collection[OwnedVnpu]
) -> tuple[VendorDevice, ...]:
    """Return the devices; each vNPU of the agent has its pod as owner."""
    pods: dict[tuple[str, int | None], str] = {
        (entry.chip, entry.vdev): entry.pod for entry in entries if entry.vdev is not None
    }
    return tuple(
        replace(
            device,
            partitions=tuple(
                replace(part, owner=pods.get((device.uuid or "", part.instance), ""))
                for part in device.partitions
            ),
        )
        for device in devices
    )
