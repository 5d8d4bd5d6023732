"""Makes slices of devices for pods: which are needed, and the requests to the vendors' workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agent.clock import Clock
from agent.errors import WorkerError
from agent.messages import EventReported, MessageQueue
from agent.snapshot.allocation import AllocatedDevice
from agent.snapshot.device import VendorDevice
from agent.snapshot.inventory import SliceReport, SliceRequest
from agent.snapshot.node import NodeSnapshot
from agent.snapshot.pod import ENDED_PHASES, PodRef
from agent.snapshot.vendor import SlicesDevices
from agent.workers.protocol import CLOSED
from agent.workers.worker_process import LATE

RequestsByVendor = Mapping[str, tuple[SliceRequest, ...]]  # by the vendor's plug-in


def slice_requests(
    snapshot: NodeSnapshot, slicers: Mapping[str, SlicesDevices]
) -> RequestsByVendor:
    """Return the slices that valid allocations need, by vendor, in the order of the pods' uids."""
    requests: dict[str, list[SliceRequest]] = {}
    vendors = _vendor_by_device(snapshot)
    cards = tuple(device.info for device in snapshot.devices.value.devices)
    for uid, allocation in sorted(snapshot.grants.value.pods.items()):
        for entry in () if allocation.refusal else allocation.grant.devices:
            card = next((card for card in cards if _is_device_of(entry, card)), None)
            vendor = vendors.get(card.key, "") if card is not None else ""
            slicer = slicers.get(vendor)
            if card is None or slicer is None:
                continue
            if slicer.is_sliced_by_runtime(_runtime_handler(snapshot, uid, vendor)):
                continue
            request = slicer.slice_request(uid, entry, card)
            if request is not None:
                requests.setdefault(vendor, []).append(request)
    return {vendor: tuple(dict.fromkeys(of_vendor)) for vendor, of_vendor in requests.items()}


def live_pods(snapshot: NodeSnapshot) -> frozenset[str] | None:
    """Return the uids of all pods that may hold a slice; `None` if nobody knows them.

    Those that a list has, that the runtime has a sandbox of, that have a cgroup: any of them
    keeps a slice. Only a list of the API server, or the runtime's, says that there are no others.
    """
    cluster, runtime = snapshot.cluster, snapshot.runtime.value
    known = cluster.has_pod_list if cluster.is_clustered else runtime.is_synchronized
    if not known:
        return None
    listed = (pod.uid for pod in cluster.pods if pod.phase not in ENDED_PHASES)
    boxes = (box.uid for box in runtime.sandboxes.values() if not box.stopped)
    groups = (pod.uid for pod in snapshot.pods.value)
    return frozenset((*listed, *boxes, *groups))


def slice_owners(snapshot: NodeSnapshot, vendor: str) -> frozenset[tuple[str, str]]:
    """Return (pod, device) of each slice that the vendor shows and we made."""
    state = next((state for state in snapshot.vendors if state.vendor == vendor), None)
    inventory = state.inventory.value if state is not None else None
    return frozenset(
        (part.owner, device.key)
        for device in (inventory.devices if inventory is not None else ())
        for part in device.partitions
        if part.owner
    )


def _vendor_by_device(snapshot: NodeSnapshot) -> dict[str, str]:
    return {
        device.key: state.vendor
        for state in snapshot.vendors
        if state.inventory.value is not None
        for device in state.inventory.value.devices
    }


def _runtime_handler(snapshot: NodeSnapshot, uid: str, vendor: str) -> str:
    """Return the runtime handler of a pod; that of the node if its sandbox names none."""
    boxes = snapshot.runtime.value.sandboxes.values()
    handler = next((box.runtime_handler for box in boxes if box.uid == uid), "")
    host = snapshot.means.value.vendors.get(vendor)
    return handler or (host.default_handler if host is not None else "")


def _is_device_of(entry: AllocatedDevice, card: VendorDevice) -> bool:
    if card.kind.wire_type != entry.type:
        return False
    return entry.id == card.uuid if entry.id else entry.minor == card.minor


log = logging.getLogger(__name__)

SLICE_CHECK_S = 1.0

RETRY_S, MAX_RETRY_S = 1.0, 60.0  # between two tries that did not do all that is wished for

# between two that each cost the worker: so few that they alone do not put it into quarantine
WORKER_RETRY_S, MAX_WORKER_RETRY_S = 60.0, 300.0

WORKER_FAILURES = (LATE, CLOSED)  # why nobody answers any more

SliceFunction = Callable[
    [str, tuple[SliceRequest, ...], tuple[str, ...] | None], Awaitable[SliceReport]
]


class _VendorSliceStatus(msgspec.Struct):
    """How it stands with one vendor."""

    has_been_asked: bool = False  # since the agent's start: what an earlier one left is tidied up
    failures: int = 0
    retry_at_s: float = 0.0  # monotonic, when what failed may be tried again
    worker_failures: int = 0  # of workers that were asked, in a row
    worker_retry_s: float = 0.0  # monotonic, when one may be asked again, whatever is wished for
    last_requests: frozenset[SliceRequest] = frozenset()  # with the last try
    reported_problems: frozenset[tuple[str, str, str]] = frozenset()  # pod, device, reason


class SliceManager:
    """Belongs to the loop thread. Asked again it does nothing that is done already."""

    def __init__(
        self,
        current: Callable[[], NodeSnapshot],
        cut: SliceFunction,
        messages: MessageQueue,
        clock: Clock,
        *,
        slicers: Mapping[str, SlicesDevices],
        grace_s: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`cut` sends requests to one vendor's worker; `slicers` are the vendors, by name.

        `grace_s` is how long a pod counts as present after no list has it any more.
        """
        self._slicers = slicers
        self._current_snapshot = current
        self._slice = cut
        self._messages = messages
        self._clock = clock
        self._grace_s = grace_s
        self._sleep = sleep
        self._vendors: dict[str, _VendorSliceStatus] = {}
        self._unlisted_since_s: dict[
            str, float
        ] = {}  # uid, monotonic second since when nobody lists it
        self.reclaimed_count = 0

    async def run(self) -> None:
        """Look each second, for ever."""
        while True:
            await self.step()
            await self._sleep(SLICE_CHECK_S)

    async def step(self) -> None:
        """Look once at every vendor whose worker answers."""
        snapshot = self._current_snapshot()
        wanted, pods = slice_requests(snapshot, self._slicers), self._pods_with_grace(snapshot)
        for state in snapshot.vendors:
            if state.state == "ready":
                mine = wanted.get(state.vendor, ())
                if pods is not None:  # a grant is known for a while after its pod
                    mine = tuple(wish for wish in mine if wish.pod in pods)
                await self._update_vendor(snapshot, state.vendor, mine, pods)

    def _pods_with_grace(self, snapshot: NodeSnapshot) -> frozenset[str] | None:
        """Return the pods that count as there: also those that are missing for a short while."""
        pods, now_s = live_pods(snapshot), self._clock.monotonic()
        if pods is None:
            self._unlisted_since_s.clear()  # a missing one may have been missing all along
            return None
        held = {
            pod for state in snapshot.vendors for pod, _ in slice_owners(snapshot, state.vendor)
        }
        self._unlisted_since_s = {
            uid: self._unlisted_since_s.get(uid, now_s) for uid in held - pods
        }
        lately = {
            u for u, since_s in self._unlisted_since_s.items() if now_s - since_s < self._grace_s
        }
        return pods | lately

    async def _update_vendor(
        self,
        snapshot: NodeSnapshot,
        vendor: str,
        wanted: tuple[SliceRequest, ...],
        pods: frozenset[str] | None,
    ) -> None:
        standing = self._vendors.setdefault(vendor, _VendorSliceStatus())
        have = slice_owners(snapshot, vendor)
        lacking = frozenset(wish for wish in wanted if (wish.pod, wish.device) not in have)
        orphaned = pods is not None and any(pod not in pods for pod, _ in have)
        # before the first answer of the lists there is nothing to take back by
        fresh = not standing.has_been_asked and pods is not None
        now_s = self._clock.monotonic()
        early = now_s < standing.retry_at_s and lacking <= standing.last_requests
        if not (lacking or orphaned or fresh) or early or now_s < standing.worker_retry_s:
            return
        standing.last_requests = lacking
        listed = None if pods is None else tuple(sorted(pods))
        try:
            kept = await self._slice(vendor, wanted, listed)
        except WorkerError as error:
            self._record_failure(vendor, standing, wanted, error)
            return
        standing.has_been_asked = standing.has_been_asked or pods is not None
        standing.worker_failures = 0
        # what it says is done and does not show is not asked for each second
        idle = bool(lacking or orphaned) and not kept.changed
        self._record_report(standing, kept, done=not (kept.unmade or kept.failed or idle))

    def _record_failure(
        self,
        vendor: str,
        standing: _VendorSliceStatus,
        wanted: tuple[SliceRequest, ...],
        error: WorkerError,
    ) -> None:
        self._delay_retry(standing)
        if error.reason in WORKER_FAILURES:
            standing.worker_failures += 1
            wait_s = min(
                MAX_WORKER_RETRY_S, WORKER_RETRY_S * 2.0 ** min(standing.worker_failures - 1, 10)
            )
            standing.worker_retry_s = self._clock.monotonic() + wait_s
        if error.reason == "NotSupported":
            standing.has_been_asked = True
        else:
            fields = {"vendor": vendor, "error": str(error)}
            log.warning("slices_not_kept", extra=fields)
        troubles = {(w.pod, w.device, error.reason): str(error) for w in wanted}
        self._report_new_problems(standing, troubles)

    def _record_report(
        self, standing: _VendorSliceStatus, kept: SliceReport, *, done: bool
    ) -> None:
        if done:
            standing.failures, standing.retry_at_s = 0, 0.0
        else:
            self._delay_retry(standing)
        self.reclaimed_count += len(kept.reclaimed)
        for words in kept.reclaimed:
            self._report_event("", "SliceReclaimed", f"{words} was taken back: the pod is gone")
        for pod in kept.lost:
            self._report_event(
                pod, "SliceLost", "a reset of the card took the slice that the pod uses"
            )
        troubles = {(one.pod, one.device, one.reason): one.message for one in kept.unmade}
        troubles.update({("", words, "SliceNotReclaimed"): words for words in kept.failed})
        self._report_new_problems(standing, troubles)

    def _report_new_problems(
        self, standing: _VendorSliceStatus, troubles: Mapping[tuple[str, str, str], str]
    ) -> None:
        """Report each problem once for as long as it lasts."""
        for (pod, device, reason), message in troubles.items():
            if (pod, device, reason) not in standing.reported_problems:
                self._report_event(pod, reason, message)
        standing.reported_problems = frozenset(troubles)

    def _report_event(self, pod_uid: str, reason: str, message: str) -> None:
        """Report an event of a pod, or of the node where `pod_uid` is empty."""
        pod = _pod_reference(self._current_snapshot(), pod_uid)
        text = message if pod is not None or not pod_uid else f"pod {pod_uid}: {message}"
        self._messages.put(EventReported(reason, text, pod))

    def _delay_retry(self, standing: _VendorSliceStatus) -> None:
        standing.failures += 1
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(standing.failures - 1, 10))
        standing.retry_at_s = self._clock.monotonic() + wait_s


def _pod_reference(snapshot: NodeSnapshot, uid: str) -> PodRef | None:
    """Return the pod of a uid; `None` if it has no device allocation, which has its name."""
    allocation = snapshot.grants.value.pods.get(uid)
    if allocation is None:
        return None
    return PodRef(namespace=allocation.namespace or "default", name=allocation.name, uid=uid)
