"""Which devices of a resource are in use: by the kubelet's account, and in truth. Pure.

The kubelet accounts the devices that it chose, and never learns that a pod has others: those that
the scheduler granted, or those that a pod got in exchange. So a device that the kubelet holds for
free may be in use, and one that it holds for used may be free. The two are exchanged for a pod
without a grant. The kubelet's account stays as it is; ours has the exchange until the pod's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.deviceplugin.match import granted_places, holders_of
from agent.deviceplugin.units import Place, Served, Unit
from agent.model.cluster.pods import ENDED
from agent.model.pod import PodView
from agent.model.runtime.served import Held
from agent.model.snapshot import NodeSnapshot

# topology manager policies under which a pod is promised devices of the NUMA nodes of its CPUs
ALIGNED = ("restricted", "single-numa-node")


class Accounts:
    """The devices of one resource at one moment."""

    def __init__(
        self,
        one: Served,
        offered: Mapping[str, Served],
        snapshot: NodeSnapshot,
        sent: Collection[str] = (),
        askers: Collection[str] = (),
    ) -> None:
        """Read both accounts; `offered` are all resources.

        `sent` are the ids that the kubelet sends now, for one of the pods `askers`: it has freed
        them, unless a container of the same pod reuses those of an init container.
        """
        self._reuse: dict[str, str] = {}  # of the ids that are sent: what the pod has for them
        self._account: set[str] = set()  # ids that the kubelet holds for used
        self._one = one
        self._granted = granted_places(one.devices, snapshot)
        self._holders = holders_of(one.devices, snapshot)
        self._living_account: set[str] = set()  # those of them whose pod is known to live
        self._ids: dict[str, str] = {}  # that pods without a grant have in truth, with their uids
        self._places: set[Place] = set()  # the same, of all resources
        self._answered: Counter[str] = Counter()  # ids of this resource by pod
        facts = snapshot.cluster.kubelet.value
        self._aligned = facts is not None and facts.topology_policy in ALIGNED
        self._pods = {pod.uid: pod for pod in snapshot.cluster.pods}
        self._deleted = snapshot.cluster.deleted
        self._clustered = snapshot.cluster.clustered
        for held in snapshot.served.value.held:
            self._enter(held, offered, frozenset(sent), askers)

    def is_in_use(self, unit: Unit) -> bool:
        """Return whether somebody has a device, whatever the kubelet's account says of it."""
        return unit.id in self._ids or is_taken(unit, self._granted)

    def exchange(self, units: Sequence[Unit]) -> Mapping[str, str] | None:
        """Return what a pod without a grant gets for the ids that it was sent; `None`: no fit."""
        exchange: dict[str, str] = {}
        spare = list(self.spare())
        for unit in units:
            if unit.id in self._reuse:
                exchange[unit.id] = self._reuse[unit.id]
                continue
            if not self.is_in_use(unit):
                exchange[unit.id] = unit.id
                continue
            fitting = [one for one in spare if not self._aligned or _same_nodes(one, unit)]
            if not fitting:
                return None
            best = min((not _same_nodes(one, unit), one.order, one.id) for one in fitting)[2]
            spare = [one for one in spare if one.id != best]
            exchange[unit.id] = best
        return exchange

    def spare(self) -> Iterator[Unit]:
        """Yield devices in service that the kubelet holds for used, and that nobody has."""
        cards = {key for key, _, _ in self._places}
        for name in self._living_account:
            unit = self._one.units.get(name)
            if unit is None or not unit.healthy or self.is_in_use(unit):
                continue
            if unit.replica is None:  # replicas of one thing are many pods'
                whole = unit.whole and unit.device.key in cards
                if whole or is_taken(unit, self._places):
                    continue
            yield unit

    def ids_to_withdraw(self) -> frozenset[str]:
        """Return the ids that no pod can be given, although the kubelet holds them for free.

        Those are in use, and there is no spare device to exchange them for. Left to the kubelet are
        as many ids as granted pods ask for that have no entry in its account: such a pod has yet to
        be admitted, or has ended and the kubelet knew first. Withdrawing its devices would end the
        admission of that pod, or of its successor, for good. The device of a pod that no list has
        yet, as right after a start of the agent, is not withdrawn either.
        """
        groups: dict[tuple[int, ...], list[Unit]] = {}
        for unit in self._candidates():
            free = unit.id not in self._account and unit.healthy
            if free and self.is_in_use(unit) and self._is_listed(self._holder(unit)):
                groups.setdefault(self._group(unit), []).append(unit)
        if not groups:
            return frozenset()
        spare: dict[tuple[int, ...], int] = {}
        for unit in self.spare():
            spare[self._group(unit)] = spare.get(self._group(unit), 0) + 1
        waiting, awaited = self._waiting()
        ids: list[str] = []
        for group, units in groups.items():
            excess = len(units) - spare.get(group, 0) - awaited
            units.sort(key=lambda unit: (self._holder(unit) in waiting, unit.order))
            ids += [unit.id for unit in units[: max(0, excess)]]
        return frozenset(ids)

    def _enter(
        self,
        held: Held,
        offered: Mapping[str, Served],
        sent: frozenset[str],
        askers: Collection[str],
    ) -> None:
        pod = self._pods.get(held.pod_uid)
        if held.pod_uid in self._deleted or (pod is not None and pod.phase in ENDED):
            return
        own = held.resource == self._one.name
        if own and sent.intersection(held.ids):
            if held.pod_uid and held.pod_uid not in askers:
                return  # the kubelet has freed its devices
            self._reuse |= {name: given for name, given in held.pairs if name in sent}
        if own:
            self._account.update(held.ids)
            self._answered[held.pod_uid] += len(held.ids)
            if pod is not None:
                self._living_account.update(held.ids)
        resource = offered.get(held.resource)
        if held.pod_uid in self._holders or resource is None:
            return
        ids = held.device_ids if held.exchanges else held.ids
        if own:
            self._ids.update(dict.fromkeys(ids, held.pod_uid))
        self._places.update(resource.units[name].place for name in ids if name in resource.units)

    def _candidates(self) -> Iterator[Unit]:
        """Yield all units that may be in use: there may be thousands, and few in use."""
        keys = dict.fromkeys(key for key, _, _ in self._granted)
        for key in keys:
            yield from self._one.by_card.get(key, ())
        for name in sorted(self._ids.keys() - self._account):
            unit = self._one.units.get(name)
            if unit is not None and unit.device.key not in keys:
                yield unit

    def _group(self, unit: Unit) -> tuple[int, ...]:
        """Return what two devices must have in common to be exchanged."""
        return (unit.device.place.numa_node,) if self._aligned else ()

    def _waiting(self) -> tuple[frozenset[str], int]:
        """Return the granted pods without entries in the account, and how many ids they ask for."""
        held = [key for key in self._pods if key in self._holders]
        needed = {uid: self._needed(self._pods[uid]) for uid in held}
        return frozenset(uid for uid, count in needed.items() if count), sum(needed.values())

    def _needed(self, pod: PodView) -> int:
        if pod.phase in ENDED:
            return 0
        asked = sum(ask.count for ask in pod.asks if ask.resource == self._one.name)
        return max(0, asked - self._answered.get(pod.uid, 0))

    def _is_listed(self, uid: str) -> bool:
        return uid in self._pods or not self._clustered

    def _holder(self, unit: Unit) -> str:
        card = (unit.device.key, "", "")
        uid = self._granted.get(unit.place) or self._granted.get(card)
        return uid or self._ids.get(unit.id, "")


def is_taken(unit: Unit, taken: Collection[Place]) -> bool:
    """Return whether somebody has a unit: itself, or the card that it is of."""
    return unit.place in taken or (unit.device.key, "", "") in taken


def _same_nodes(one: Unit, other: Unit) -> bool:
    return one.device.place.numa_node == other.device.place.numa_node
