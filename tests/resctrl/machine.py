"""The hardware of an emulated resctrl file system, and how it was mounted."""

from __future__ import annotations

from dataclasses import dataclass

MAX_MBPS = 4294967295


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the hardware has and how the file system was mounted."""

    l3_mask: int = 0x7FF
    l3_min_bits: int = 1
    l3_closids: int = 16
    l3_shareable: int = 0x600
    l3_domains: tuple[int, ...] = (0, 1)  # empty: no cache allocation
    l3_bytes: int = 16 << 20
    sparse_masks: bool | None = None  # `None`: a kernel without the file
    cdp: bool = False
    mb_min: int = 10
    mb_gran: int = 10
    mb_max: int = 100
    mb_closids: int = 8
    mb_domains: tuple[int, ...] = (0, 1)  # empty: no bandwidth allocation
    mb_linear: bool = True
    mba_mbps: bool = False
    rmids: int = 64  # 0: no monitoring
    cpus: int = 4

    @property
    def l3_lines(self) -> tuple[str, ...]:
        """Return the names of the cache lines of `schemata`, in the kernel's order."""
        if not self.l3_domains:
            return ()
        return ("L3DATA", "L3CODE") if self.cdp else ("L3",)

    @property
    def closids(self) -> int:
        """Return how many control groups there can be, with the root."""
        limits = [self.l3_closids // (2 if self.cdp else 1)] if self.l3_domains else []
        limits += [self.mb_closids] if self.mb_domains else []
        return min(limits)

    @property
    def mb_default(self) -> int:
        """Return the bandwidth of a new group."""
        return MAX_MBPS if self.mba_mbps else self.mb_max


DEFAULT_MACHINE = Machine()
