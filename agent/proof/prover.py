"""The proofs of all containers of the node, kept up to date a few at a time."""

from __future__ import annotations

from types import MappingProxyType

from agent.cgroup.layout import CgroupLayout, detect
from agent.clock import Clock
from agent.hooks.base import Hook
from agent.host.files import HostFiles
from agent.model.grant.proof import Proof, ProofView, Verdict
from agent.model.snapshot import NodeSnapshot
from agent.proof.expected import Expected, cards_of, expected_of
from agent.proof.judge import Cards, Judgement, judge
from agent.proof.look import RECORDS, Looker
from agent.proof.watching import Schedule, Target, targets


class Prover:
    """Looks at containers when they are due. Of the collector thread; one run takes milliseconds.

    `hook` is that of the devices: what it gives a container now is what the container must have.
    Once that was found there it stays the measure: what the host has later was not granted then.
    """

    def __init__(
        self,
        host: HostFiles,
        hook: Hook,
        clock: Clock,
        *,
        proc: str = "/proc",
        records: tuple[str, ...] = RECORDS,
    ) -> None:
        self._host, self._hook, self._clock = host, hook, clock
        self._looker = Looker(host, proc=proc, records=records)
        self._schedule = Schedule()
        self._proofs: dict[str, Proof] = {}
        self._found: dict[str, Expected] = {}  # of those that had everything

    def run_once(self, snapshot: NodeSnapshot) -> ProofView:
        """Look at what is due and return all proofs; those of containers that are gone, no more."""
        here = targets(snapshot)
        known = {target.id for target in here}
        self._proofs = {key: proof for key, proof in self._proofs.items() if key in known}
        self._found = {key: measure for key, measure in self._found.items() if key in known}
        due = self._schedule.due(here, self._clock.monotonic())
        if due:
            layout, cards = detect(self._host), cards_of(snapshot)
            for target in due:
                self._prove(target, snapshot, layout, cards)
        return ProofView(containers=MappingProxyType(dict(self._proofs)))

    def _prove(
        self, target: Target, snapshot: NodeSnapshot, layout: CgroupLayout | None, cards: Cards
    ) -> None:
        found = self._judged(target, snapshot, layout, cards)
        now_s = self._clock.monotonic()
        self._schedule.looked(target, found.verdict if found else Verdict.VERIFIED, now_s)
        if found is None:
            self._proofs.pop(target.id, None)
            return
        self._proofs[target.id] = Proof(
            container_id=target.id,
            container=target.name,
            pod_uid=target.pod.uid,
            namespace=target.pod.namespace,
            pod=target.pod.name,
            verdict=found.verdict,
            details=found.details,
            way=target.way,
            looked_s=self._clock.wall(),
        )

    def _judged(
        self, target: Target, snapshot: NodeSnapshot, layout: CgroupLayout | None, cards: Cards
    ) -> Judgement | None:
        """Return what is found; `None` if the container's grant gives it nothing to be found."""
        expected = self._found.get(target.id)
        if expected is None:
            expected = expected_of(self._hook, snapshot, target.pod, target.name)
        if expected.nothing:
            return None
        if expected.problem:
            detail = f"what it should have cannot be told: {expected.problem}"
            return Judgement(verdict=Verdict.UNKNOWN, details=(detail,))
        if layout is None:
            return Judgement(verdict=Verdict.UNKNOWN, details=("this host has no cgroups",))
        evidence = self._looker.look(layout, target.where, expected.edits)
        judged = judge(expected.edits, cards, evidence, expected.own)
        if judged.verdict is Verdict.VERIFIED:
            self._found[target.id] = expected
        return judged
