"""Calls the optional methods of vendors and sessions, with a default where one is missing."""

from __future__ import annotations

from collections.abc import Sequence

from agent.errors import NotSupported
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


def find_remedy(vendor: DeviceVendor, reason: str, message: str) -> str:
    """Return advice for a reason that the vendor reported; empty if the vendor has none.

    A vendor with advice has a method `remedy(reason, message) -> str`, pure, called in the agent.
    The reason is that of a device's health, a condition or a problem.
    """
    remedy = getattr(vendor, "remedy", None)
    return "" if remedy is None else str(remedy(reason, message))
