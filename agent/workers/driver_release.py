"""Releases a vendor's driver while a label of the Node asks for it.

A person, or the operator that exchanges a driver, can then unload it without a shell on the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from agent.snapshot.device import Pairs
from agent.snapshot.node import SnapshotStore
from agent.snapshot.vendor import DeviceVendor, ReleaseLabel
from agent.workers.manager import VendorManager

log = logging.getLogger(__name__)

OWN_LABEL = "xpu-agent.io/driver-release"
SEPARATOR = "."  # between names of vendors: a label's value has no comma
MAX_NAMED_LABELS = 3  # in a message; an operator may set eight at once


def find_release_request(vendor: str, labels: Pairs, rules: Iterable[ReleaseLabel]) -> str:
    """Return the labels that ask to release a vendor's driver as `key=value`; empty without one."""
    rules = tuple(rules)
    requests = [
        f"{key}={value}"
        for key, value in labels
        if (key == OWN_LABEL and vendor in value.split(SEPARATOR))
        or any(rule.matches(key, value) for rule in rules)
    ]
    return ", ".join(sorted(requests)[:MAX_NAMED_LABELS])


class DriverReleaser:
    """Lets each vendor's client follow the labels of the Node. Belongs to the loop thread.

    While the API server does not answer, the last labels count. A Node that was removed asks for
    nothing.
    """

    def __init__(
        self, store: SnapshotStore, manager: VendorManager, vendors: Mapping[str, DeviceVendor]
    ) -> None:
        self._store = store
        self._manager = manager
        self._rules = {name: one.description.release_labels for name, one in vendors.items()}

    async def run(self) -> None:
        """Follow the Node and the vendors until cancelled."""
        with self._store.subscribe("cluster.node.value", "vendors") as changes:
            while True:
                await self.apply()
                await changes.wait()

    async def apply(self) -> None:
        """Release the drivers that the labels name now, and take back all others."""
        node = self._store.current.cluster.node.value
        labels = node.labels if node is not None else ()
        changes = []
        for client in self._manager.clients:
            vendor = client.state.vendor
            request = find_release_request(vendor, labels, self._rules.get(vendor, ()))
            if request != client.release_request:
                log.warning("driver_release", extra={"vendor": vendor, "labels": request})
                changes.append(client.follow_request(request))
        await asyncio.gather(*changes)
