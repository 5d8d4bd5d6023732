"""What is looked at for containers, on the collector thread: means, grants, running containers."""

from __future__ import annotations

from collections.abc import Iterator

from agent.clock import Clock
from agent.daemon.schedule import Timed
from agent.grants.check import check_grants
from agent.grants.kept import Kept
from agent.hooks.devices import DevicesHook
from agent.loop import Loop
from agent.means.reader import MeansReader
from agent.model.part import Part
from agent.node.parts import Parts
from agent.node.store import SnapshotStore
from agent.node.vendors import vendor_settings
from agent.probe.base import needs_of
from agent.proof.prover import Prover
from agent.proof.watching import Exempt, never

MEANS_S = 2.0  # a node or a CDI file that comes later is known that soon
GRANTS_S = 0.5
PROOF_S = 1.0


def means_reader(parts: Parts) -> MeansReader:
    """Return the reader of this host for the vendors that are wanted."""
    own = vendor_settings(parts.settings)
    needs = {name: needs_of(vendor, own.get(name, {})) for name, vendor in parts.vendors.items()}
    return MeansReader(parts.host(), needs, own, parts.clock, parts.kubelet_root)


class Looking:
    """Fills the snapshot's parts about containers; each run is cheap while nothing changes."""

    def __init__(
        self, parts: Parts, hook: DevicesHook, *, proves: bool, exempt: Exempt = never
    ) -> None:
        """`proves`: also look into running containers, which only a live host has.

        Pods without a grant that are `exempt` are not looked into.
        """
        self._store: SnapshotStore = parts.store
        self._clock: Clock = parts.clock
        self._means = means_reader(parts)
        self._prover = (
            Prover(
                parts.host(),
                hook,
                parts.clock,
                exempt=exempt,
                injection=parts.settings.device_plugin.injection,
            )
            if proves
            else None
        )
        self._judged: tuple[object, ...] = ()
        self._kept = Kept()
        self._first = (
            Timed(Loop("means", MEANS_S, self.look)),
            Timed(Loop("grants", GRANTS_S, self.judge)),
        )

    def timed(self) -> Iterator[Timed]:
        """Return the loops; all belong to the collector thread."""
        yield from self._first
        if self._prover is not None:
            yield Timed(Loop("proof", PROOF_S, self._prove), PROOF_S)

    def first(self) -> None:
        """Look once before anybody asks; what fails is told as any run's failure."""
        for timed in self._first:
            timed.loop.step(self._clock.monotonic())

    def look(self) -> None:
        """Read what the host has."""
        view = self._means.read(self._store.current)
        self._store.put(means=Part(view, self._clock.monotonic()))

    def judge(self) -> None:
        """Check all grants, if anything they are judged by is another."""
        now = self._store.current
        cluster, devices = now.cluster, now.devices.value
        inputs = (
            cluster.pods,
            cluster.pods_known,
            cluster.deleted,
            now.runtime.value,
            devices,
            now.served.value.held,
        )
        if len(self._judged) == len(inputs) and all(map(_same, inputs, self._judged)):
            view = now.grants.value
        else:
            view, self._judged = check_grants(now, self._kept), inputs
        self._store.put(grants=Part(view, self._clock.monotonic()))

    def _prove(self) -> None:
        if self._prover is None:
            return
        view = self._prover.run_once(self._store.current)
        if view != self._store.current.proof.value:
            self._store.put(proof=Part(view, self._clock.monotonic()))


def _same(one: object, other: object) -> bool:
    return one is other
