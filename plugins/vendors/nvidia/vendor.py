"""NVIDIA as a vendor: sighted from sysfs by the agent, opened in its worker only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from agent.model.inventory import MetricFamily
from plugins.bindings.nvml.series import FAMILIES
from plugins.injection.lazily import lazily, needs_lazily
from plugins.vendors.nvidia.sight import device, placeless, survey

if TYPE_CHECKING:
    from plugins.vendors.nvidia.session import NvidiaSession


class NvidiaVendor:
    """GPUs of NVIDIA. Settings are those of `discovery.nvidia`."""

    name: str = "nvidia"
    families: tuple[MetricFamily, ...] = FAMILIES
    edits = staticmethod(lazily("plugins.injection.nvidia.edits"))
    needs = staticmethod(needs_lazily("plugins.injection.nvidia.edits"))

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List display functions of NVIDIA's with whose driver they are bound to."""
        found = survey(host)
        return tuple(device(seen) for seen in (*found.cards, *placeless(found.platform)))

    def check(self, settings: Mapping[str, object]) -> None:
        """Refuse what is no number of an Xid."""
        xids = settings.get("xids")
        if xids is not None and xids != type(xids)():
            from plugins.faults.nvidia.xid import rules  # noqa: PLC0415 - a start needs no catalogue

            rules(settings, {})

    def remedy(self, reason: str, message: str) -> str:
        """Return what a person does about a reason given for a card."""
        from plugins.faults.nvidia.remedies import remedy  # noqa: PLC0415 - only commands ask

        return remedy(reason, message)

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> NvidiaSession:
        """Return a session; the library is looked for at its first discovery."""
        from plugins.vendors.nvidia.session import NvidiaSession  # noqa: PLC0415 - workers only

        return NvidiaSession(host, settings)
