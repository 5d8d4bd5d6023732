"""Calls the optional methods of vendors and sessions, with a default where one is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.errors import NotSupported
from agent.runbook.entry import VendorRunbook
from agent.runbook.runbook import Runbook
from agent.snapshot.inventory import (
    SliceReport,
    SliceRequest,
)
from agent.snapshot.vendor import DeviceVendor, VendorSession
from agent.workers.call_journal import CallJournal


def clear_fault(session: VendorSession, key: str) -> bool:
    """Clear a device's lasting fault on a person's request; return whether there was one.

    A vendor with lasting faults has a method `clear(key) -> bool`, called on the thread of the
    requests. For other vendors this raises `NotSupported`.
    """
    clear = getattr(session, "clear", None)
    if clear is None:
        raise NotSupported("this vendor keeps no fault that a person could clear")
    return bool(clear(key))


def apply_slices(
    session: VendorSession, requests: Sequence[SliceRequest], pods: tuple[str, ...] | None
) -> SliceReport:
    """Create slices for pods, and delete slices of pods that do not exist any more.

    A vendor whose cards can be partitioned has a method `slices(requests, pods) -> SliceReport`,
    called on the thread of the requests. It creates requested slices that do not exist; `pods` are
    the uids on this node, `None` if they are unknown: then it deletes nothing. For other vendors
    this raises `NotSupported`.
    """
    slices = getattr(session, "slices", None)
    if slices is None:
        raise NotSupported("this vendor's cards are not cut for pods")
    report: SliceReport = slices(requests, pods)
    return report


def set_call_journal(session: VendorSession, journal: CallJournal) -> None:
    """Give the session the journal in which it records the current call of its library.

    A vendor whose library may hang in a call about one device has a method
    `journal_calls(journal)`, called once, before the first request. Its calls then begin with
    `journal.enter(symbol, device key)`, which raises `CallSuspended` for a call that hung before,
    and end with `journal.leave()`.
    """
    journal_calls = getattr(session, "journal_calls", None)
    if journal_calls is not None:
        journal_calls(journal)


def find_vendor_runbook(vendor: DeviceVendor) -> VendorRunbook | None:
    """Return a vendor's entries of the runbook; `None` if it has none.

    A vendor with reasons of its own has an attribute `runbook`, such as the table that
    `agent.runbook.entry.entry_table` makes. It is pure, and used in the agent.
    """
    runbook: VendorRunbook | None = getattr(vendor, "runbook", None)
    return runbook


def build_runbook(vendors: Mapping[str, DeviceVendor]) -> Runbook:
    """Return the runbook with the agent's entries and those of these vendors."""
    runbooks = {name: find_vendor_runbook(vendor) for name, vendor in vendors.items()}
    return Runbook({name: runbook for name, runbook in runbooks.items() if runbook is not None})
