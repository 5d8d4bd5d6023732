"""What a vendor must provide. Implementations are plain classes without base classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from agent.errors import NotSupported
from agent.host.files import HostFiles
from agent.model.device import VendorDevice
from agent.model.inventory import DeviceEvent, DeviceSample, Inventory, MetricFamily
from agent.model.runtime.slices import SlicesKept, SliceWish

if TYPE_CHECKING:
    from agent.model.grant.container import Container
    from agent.model.grant.edits import ContainerEdits
    from agent.model.grant.granted import Grant
    from agent.model.grant.host import HostMeans, HostNeeds
    from agent.probe.call_journal import CallJournal

Settings = Mapping[str, object]  # the vendor's own section of `discovery`, decoded YAML


class VendorSession(Protocol):
    """An opened vendor. Lives in the vendor's own process: it may block or crash there."""

    def discover(self) -> Inventory:
        """Return every device of the vendor; a fact that cannot be told is `None`, never 0."""
        ...

    def sample(self) -> tuple[DeviceSample, ...]:
        """Return what the devices do now; a device that does not answer is left out."""
        ...

    def events(self, wait_s: float) -> tuple[DeviceEvent, ...]:
        """Wait for events at most that long; called on a thread of its own."""
        ...

    def close(self) -> None:
        """Let go of the library."""
        ...


class DeviceVendor(Protocol):
    """A kind of hardware. `sighted`, `check` run in the agent, `open` in the worker.

    A vendor that only reads files says so with `isolated = False`: its session then lives in the
    agent, on the thread that reads the host, and `events` must not wait.
    """

    name: str

    @property
    def families(self) -> tuple[MetricFamily, ...]:
        """What the readings of its samples are; asked for after the first devices are told."""
        ...

    def sighted(self, host: HostFiles) -> tuple[VendorDevice, ...]:
        """List the vendor's hardware from sysfs and procfs alone, in less than 10 ms.

        Empty: the vendor has nothing here and no worker is started. Each device carries the
        reason why no more is known; that is what is shown while the worker does not answer.
        """
        ...

    def check(self, settings: Settings) -> None:
        """Raise `BadConfig` that names the key if the settings are wrong; read no file.

        Called in the agent, so that a mistake is told before anything is started.
        """
        ...

    def open(self, host: HostFiles, settings: Settings) -> VendorSession:
        """Start working with the hardware.

        A missing library is no error: the session says so in its inventory, and looks for the
        library again at each discovery.
        """
        ...

    def edits(
        self,
        devices: Sequence[VendorDevice],
        grant: Grant,
        container: Container,
        host: HostMeans,
    ) -> ContainerEdits:
        """Return what a container gets of what it was granted of the vendor's `devices`.

        Pure, and called in the agent: equal arguments give equal edits, entries of other vendors'
        devices are passed over, nothing granted gives nothing but what withholds devices. Raises
        `GrantRefused` when the container could not use what it was granted.
        """
        ...


def replayed(settings: Settings) -> Settings:
    """Return a vendor's settings for a recorded host: `replay`, and no folder for lasting state.

    What is kept there is of this machine, and must neither be believed nor changed.
    """
    own = {name: value for name, value in settings.items() if name != "state_dir"}
    return {**own, "replay": True}


def clear_in(session: VendorSession, key: str) -> bool:
    """Have the session forget a device's lasting fault, as after a person looked at the card.

    A vendor that keeps such faults has a method `clear(key) -> bool`, called on the thread of the
    questions; `False` says that there was nothing to forget. All others raise `NotSupported`.
    """
    clear = getattr(session, "clear", None)
    if clear is None:
        raise NotSupported("this vendor keeps no fault that a person could clear")
    return bool(clear(key))


def slices_in(
    session: VendorSession, wishes: Sequence[SliceWish], pods: tuple[str, ...] | None
) -> SlicesKept:
    """Have the session cut slices for pods, and take back what pods that are gone left behind.

    A vendor whose cards can be cut has a method `slices(wishes, pods) -> SlicesKept`, called on the
    thread of the questions. It cuts what is wished for and not there yet; `pods` are the uids on
    this node, `None` if nobody knows: then nothing is taken back. All others raise `NotSupported`.
    """
    slices = getattr(session, "slices", None)
    if slices is None:
        raise NotSupported("this vendor's cards are not cut for pods")
    kept: SlicesKept = slices(wishes, pods)
    return kept


def journal_calls_of(session: VendorSession, journal: CallJournal) -> None:
    """Have the session tell the journal which call of its library it is in.

    A vendor whose library may hang in a call about one device has a method
    `journal_calls(journal)`, called once, before the first question. Its calls then begin with
    `journal.enter(symbol, device key)`, which raises `CallSuspended` for a call that hung before,
    and end with `journal.leave()`.
    """
    journal_calls = getattr(session, "journal_calls", None)
    if journal_calls is not None:
        journal_calls(journal)


def needs_of(vendor: DeviceVendor, settings: Settings) -> HostNeeds:
    """Return what a vendor wants looked for on the host, beside the nodes of its devices.

    A vendor that wants more has a method `needs(settings) -> HostNeeds`, pure as `edits`.
    """
    # imported here: grants come later than the first devices
    from agent.model.grant.host import NOTHING_MORE  # noqa: PLC0415 - see above

    needs = getattr(vendor, "needs", None)
    if needs is None:
        return NOTHING_MORE
    found: HostNeeds = needs(settings)
    return found


def remedy_of(vendor: DeviceVendor, reason: str, message: str) -> str:
    """Return what a person does about a reason that the vendor gave; empty if it names nothing.

    A vendor that knows its own faults has a method `remedy(reason, message) -> str`, pure, called
    in the agent. The reason is that of a device's health, of a condition or of a problem.
    """
    remedy = getattr(vendor, "remedy", None)
    return "" if remedy is None else str(remedy(reason, message))


def is_isolated(vendor: DeviceVendor) -> bool:
    """Say whether the vendor needs a process of its own: all do that say nothing else."""
    return getattr(vendor, "isolated", True) is not False


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is to be opened inside the agent, and with what."""

    vendor: DeviceVendor
    host: HostFiles
    settings: Settings  # `replay` says that the host is a recording
    events: bool = True
