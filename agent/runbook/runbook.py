"""Finds the entry of a reason: the vendor's, else the agent's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from agent.runbook.entries import OWN_ENTRIES, OWN_SECTIONS
from agent.runbook.entry import RunbookEntry, RunbookSection, VendorRunbook

# name of the vendor's plug-in (empty: none), reason, message
EntryLookup = Callable[[str, str, str], RunbookEntry | None]

_VENDOR_WHERE = (
    "the page, `xpu-agent doctor`, `xpu-agent devices`, the conditions of the Device object, the "
    "conditions of the Node (with `api.node_condition`), and the events of the node"
)


class Runbook(msgspec.Struct, frozen=True):
    """The agent's entries and those of the vendors, by the plug-in's name."""

    vendors: Mapping[str, VendorRunbook] = MappingProxyType({})

    def find(self, vendor: str, reason: str, message: str) -> RunbookEntry | None:
        """Return the entry of a reason: the vendor's, else the agent's; `None` if there is none."""
        entry = self._vendor_entry(vendor, reason, message)
        return entry if entry is not None else OWN_ENTRIES.find(reason, message)

    def _vendor_entry(self, vendor: str, reason: str, message: str) -> RunbookEntry | None:
        """Return the vendor's entry; `None` also if its plug-in fails.

        Metrics, conditions of the Node and the page must not fail with it.
        """
        own = self.vendors.get(vendor)
        if own is None:
            return None
        try:
            return own.find(reason, message)
        except Exception:  # noqa: BLE001 - a plug-in of another package raises anything
            return None

    def sections(self) -> Iterator[RunbookSection]:
        """Yield all entries by section: the agent's, then those of each vendor."""
        yield from OWN_SECTIONS
        for name in sorted(self.vendors):
            yield RunbookSection(
                title=f"Vendor {name}", where=_VENDOR_WHERE, entries=self.vendors[name].entries()
            )

    def entries(self) -> Iterator[RunbookEntry]:
        """Yield all entries."""
        for section in self.sections():
            yield from section.entries


OWN_RUNBOOK = Runbook()  # no vendor has entries
