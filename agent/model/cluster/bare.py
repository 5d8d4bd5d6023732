"""Whether a node has no device, which is more than that none is known."""

from __future__ import annotations

from agent.model.device import DeviceKind
from agent.model.snapshot import NodeSnapshot, VendorState

OF_THE_HOST = "host"  # whose problems these are: of reading the machine, not of a vendor
READY = "ready"
BLINDING = ("PciLimit", "PciUnreadable", "PciVanished")  # a device may have been overlooked


def has_devices(snapshot: NodeSnapshot) -> bool:
    """Return whether a device is listed that the Device object of the node has to show.

    Healthy NICs without RDMA are Ethernet NICs, which every node has. A card that another driver
    has is shown.
    """
    return any(
        one.info.kind is not DeviceKind.RDMA or one.info.managed or not one.info.health.in_service
        for one in snapshot.devices.value.devices
    )


def is_bare(snapshot: NodeSnapshot) -> bool:
    """Say whether it is certain that there is no device; a doubt of any kind says no.

    A card that was pulled is listed for ten minutes more. A vendor that a setting switches off
    is not asked: a person has said that its cards are not ours.
    """
    return not has_devices(snapshot) and all_told(snapshot)


def all_told(snapshot: NodeSnapshot) -> bool:
    """Say whether what is listed is certainly all there is.

    The PCI functions were read, and every vendor that has something here answers and misses
    nothing. A driver that is being replaced, a library that is missing, a worker that hangs or
    was released are no proof of anything.
    """
    view = snapshot.devices
    return (
        view.taken_s is not None
        and not view.value.awaited
        and snapshot.pci.taken_s is not None
        and not snapshot.pci.error
        and all(answers(vendor) for vendor in snapshot.vendors)
        and all(
            vendor == OF_THE_HOST and problem.reason not in BLINDING
            for vendor, problem in view.value.problems
        )
    )


def answers(vendor: VendorState) -> bool:
    """Return whether the vendor is ready and its last answer holds."""
    told = vendor.inventory
    return vendor.state == READY and told.value is not None and not told.error
