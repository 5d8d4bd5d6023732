"""Which NRI each container runtime has, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

OLD_EVENTS = 0x07FF
ALL_EVENTS = 0x3FFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One release. The numbers of NRI decide nearly everything."""

    runtime: str
    release: str
    nri: tuple[int, int, int]
    cdi: bool  # takes CDI names from plug-ins

    @property
    def events(self) -> int:
        """The mask of the events it knows."""
        return ALL_EVENTS if self.nri >= (0, 10, 0) else OLD_EVENTS

    @property
    def dedicated(self) -> bool:
        """Nine events have a call each."""
        return self.nri >= (0, 12, 0)

    @property
    def tells_version(self) -> bool:
        """Configure has its NRI version, and names of plug-ins are looked at."""
        return self.nri >= (0, 12, 0)

    @property
    def in_parts(self) -> bool:
        """Synchronize comes in parts if it is too big for one message."""
        return self.nri >= (0, 7, 0)

    @property
    def tells_limits(self) -> bool:
        """Configure has the time limits."""
        return self.nri >= (0, 7, 0)

    @property
    def rich_containers(self) -> bool:
        """Containers have times, exit codes, CDI devices; adjustments have args and more."""
        return self.nri >= (0, 10, 0)

    @property
    def updates_are_safe(self) -> bool:
        """UpdateContainers out of the blue cannot lock the runtime up."""
        return self.nri >= (0, 12, 1)


CONTAINERD_1_7_24 = Version(runtime="containerd", release="v1.7.24", nri=(0, 6, 1), cdi=False)
CONTAINERD_2_1 = Version(runtime="containerd", release="v2.1.4", nri=(0, 8, 0), cdi=True)
CONTAINERD_2_3 = Version(runtime="containerd", release="v2.3.4", nri=(0, 12, 0), cdi=True)
CONTAINERD_MAIN = Version(runtime="containerd", release="v2.4.0-beta.0", nri=(0, 12, 2), cdi=True)
CRIO_1_30 = Version(runtime="cri-o", release="1.30.4", nri=(0, 6, 0), cdi=False)
CRIO_1_34 = Version(runtime="cri-o", release="1.34.1", nri=(0, 10, 0), cdi=True)

VERSIONS = (
    CONTAINERD_1_7_24,
    CONTAINERD_2_1,
    CONTAINERD_2_3,
    CONTAINERD_MAIN,
    CRIO_1_30,
    CRIO_1_34,
)
