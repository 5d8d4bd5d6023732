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
    """Have the session forget a device's lasting fault, as after a person looked at the card.

    A vendor that keeps such faults has a method `clear(key) -> bool`, called on the thread of the
    questions; `False` says that there was nothing to forget. All others raise `NotSupported`.
    """
    clear = getattr(session, "clear", None)
    if clear is None:
        raise NotSupported("this vendor keeps no fault that a person could clear")
    return bool(clear(key))


def apply_slices(
    session: VendorSession, wishes: Sequence[SliceRequest], pods: tuple[str, ...] | None
) -> SliceReport:
    """Have the session cut slices for pods, and take back what pods that are gone left behind.

    A vendor whose cards can be cut has a method `slices(wishes, pods) -> SlicesKept`, called on the
    thread of the questions. It cuts what is wished for and not there yet; `pods` are the uids on
    this node, `None` if nobody knows: then nothing is taken back. All others raise `NotSupported`.
    """
    slices = getattr(session, "slices", None)
    if slices is None:
        raise NotSupported("this vendor's cards are not cut for pods")
    kept: SliceReport = slices(wishes, pods)
    return kept


def set_call_journal(session: VendorSession, journal: CallJournal) -> None:
    """Have the session tell the journal which call of its library it is in.

    A vendor whose library may hang in a call about one device has a method
    `journal_calls(journal)`, called once, before the first question. Its calls then begin with
    `journal.enter(symbol, device key)`, which raises `CallSuspended` for a call that hung before,
    and end with `journal.leave()`.
    """
    journal_calls = getattr(session, "journal_calls", None)
    if journal_calls is not None:
        journal_calls(journal)


def find_remedy(vendor: DeviceVendor, reason: str, message: str) -> str:
    """Return what a person does about a reason that the vendor gave; empty if it names nothing.

    A vendor that knows its own faults has a method `remedy(reason, message) -> str`, pure, called
    in the agent. The reason is that of a device's health, of a condition or of a problem.
    """
    remedy = getattr(vendor, "remedy", None)
    return "" if remedy is None else str(remedy(reason, message))
