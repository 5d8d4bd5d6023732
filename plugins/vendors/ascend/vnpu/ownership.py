"""The file that lists the agent's vNPUs; no other vNPU is ever destroyed.

An entry is written before its vNPU is created.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from agent.errors import HostFileError
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import Problem
from plugins.shared.state_file import JsonStateFile

FILE_NAME = "ascend-vnpus.json"
MAX_ENTRIES = 2048


class OwnedVnpu(msgspec.Struct, frozen=True, kw_only=True):
    """One vNPU that we made, or (`vdev` `None`) are about to make."""

    chip: str  # id of the chip's die
    template: str
    pod: str  # uid
    boot: str  # id of the boot: a vNPU does not outlive it
    vdev: int | None = None
    before: tuple[int, ...] = ()  # vNPUs of the chip before ours


class VnpuOwnershipFile:
    """The lasting list of our vNPUs. Without a folder nothing can be owned, so nothing is made."""

    def __init__(self, folder: str, boot: str) -> None:
        self._file = JsonStateFile(folder, FILE_NAME, tuple[OwnedVnpu, ...])
        self._boot = boot
        stored = self._file.load() or ()
        # where nothing names the boot, a stored number may be somebody else's by now
        self.entries = tuple(entry for entry in stored if boot and entry.boot == boot)

    @property
    def problem(self) -> Problem | None:
        """Say why the list is not kept; `None` if it is."""
        return self._file.problem

    def record_intent(
        self, chip: str, template: str, pod: str, before: Collection[int]
    ) -> OwnedVnpu:
        """Write down what is about to be made; raise `HostFileError` if that is impossible."""
        entry = OwnedVnpu(
            chip=chip, template=template, pod=pod, boot=self._boot, before=tuple(sorted(before))
        )
        self._write((*self.entries, entry))
        return entry

    def record_made(self, entry: OwnedVnpu, vdev: int) -> OwnedVnpu:
        """Write down the number of what was made."""
        now = replace(entry, vdev=vdev, before=())
        self._write((*(e for e in self.entries if e != entry), now))
        return now

    def remove(self, entry: OwnedVnpu) -> None:
        """Strike an entry out: it was destroyed, or never made."""
        self._write(tuple(e for e in self.entries if e != entry))

    def _write(self, entries: tuple[OwnedVnpu, ...]) -> None:
        kept = entries[-MAX_ENTRIES:]
        if not self._file.save(kept):
            raise HostFileError(FILE_NAME, errno.EROFS)  # what is made could not be found again
        self.entries = kept


def orphaned_vnpus(entries: Collection[OwnedVnpu], pods: Collection[str]) -> tuple[OwnedVnpu, ...]:
    """Return what we made for pods that are gone."""
    return tuple(e for e in entries if e.vdev is not None and e.pod not in pods)


def with_owners(
    devices: Iterable[VendorDevice], entries: Collection[OwnedVnpu]
) -> tuple[VendorDevice, ...]:
    """Return the devices, each of our vNPUs with the pod it was made for."""
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
