"""RDMA as a device vendor: sighted by the agent, discovered and watched in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from plugins.injection.lazily import lazily, needs_lazily
from plugins.vendors.rdma.functions import sighted

if TYPE_CHECKING:
    from agent.model.inventory import MetricFamily
    from plugins.vendors.rdma.session import RdmaSession


class RdmaVendor:
    """InfiniBand, RoCE, iWARP and software RDMA devices of any driver."""

    name = "rdma"
    edits = staticmethod(lazily("plugins.injection.rdma"))
    needs = staticmethod(needs_lazily("plugins.injection.rdma"))

    @property
    def families(self) -> tuple[MetricFamily, ...]:
        """Return the families of its samples, which are told later than the first devices."""
        from plugins.vendors.rdma.counters import FAMILIES  # noqa: PLC0415 - see above

        return FAMILIES

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List RDMA devices and functions whose driver should have one, from links alone."""
        return sighted(host)

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise `BadConfig` that names the key of a rule that cannot be understood.

        Rules are tables; where there is none, what reads them is not even loaded.
        """
        if any(isinstance(value, list | tuple | Mapping) and value for value in settings.values()):
            from plugins.vendors.rdma.settings import decode  # noqa: PLC0415 - see above

            decode(settings)

    def remedy(self, reason: str, message: str) -> str:
        """Return what a person does about a reason given for a device."""
        from plugins.faults.rdma.ports import remedy  # noqa: PLC0415 - only commands ask

        return remedy(reason, message)

    def open(self, host: HostFiles, settings: Mapping[str, object]) -> RdmaSession:
        """Start watching; `BadConfig` names a setting that is wrong."""
        from plugins.vendors.rdma.session import RdmaSession  # noqa: PLC0415 - workers only
        from plugins.vendors.rdma.settings import decode  # noqa: PLC0415 - workers only

        return RdmaSession(host, decode(settings))
