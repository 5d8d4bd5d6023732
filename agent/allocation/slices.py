"""Makes slices of devices for pods: computes what is needed, sends requests to the workers."""

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
from agent.snapshot.node import NodeSnapshot, SnapshotStore
from agent.snapshot.pod import ENDED_PHASES, PodRef
from agent.snapshot.vendor import SlicesDevices
from agent.workers.lifecycle import CutSlicesRequest
from agent.workers.manager import VendorManager
from agent.workers.protocol import CLOSED
from agent.workers.worker_process import LATE

log = logging.getLogger(__name__)

RequestsByVendor = Mapping[str, tuple[SliceRequest, ...]]  # by the vendor's plug-in


def slice_requests(
    snapshot: NodeSnapshot, slicers: Mapping[str, SlicesDevices]
) -> RequestsByVendor:
    """Return the slices that valid allocations need, by vendor, in the order of the pods' uids."""
    requests: dict[str, list[SliceRequest]] = {}
    vendors = _vendor_by_device(snapshot)
    cards = tuple(device.info for device in snapshot.devices.value.devices)
    if not any(vendors.get(card.key) in slicers for card in cards):
        return {}
    for uid, allocation in sorted(snapshot.allocations.value.pods.items()):
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
    """Return the uids of all pods that may have a slice; `None` while they are unknown.

    A pod counts if it is in a list, has a sandbox in the runtime, or has a cgroup. Only a complete
    list of the API server or of the runtime proves that there are no other pods.
    """
    cluster, runtime = snapshot.cluster, snapshot.runtime.value
    is_complete = cluster.has_pod_list if cluster.is_clustered else runtime.is_synchronized
    if not is_complete:
        return None
    listed = (pod.uid for pod in cluster.pods if pod.phase not in ENDED_PHASES)
    sandbox_uids = (sandbox.uid for sandbox in runtime.sandboxes.values() if not sandbox.stopped)
    cgroup_uids = (pod.uid for pod in snapshot.pods.value)
    return frozenset((*listed, *sandbox_uids, *cgroup_uids))


def slice_owners(snapshot: NodeSnapshot, vendor: str) -> frozenset[tuple[str, str]]:
    """Return (pod, device) of each slice that the vendor reports and the agent made."""
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
    sandboxes = snapshot.runtime.value.sandboxes.values()
    handler = next((sandbox.runtime_handler for sandbox in sandboxes if sandbox.uid == uid), "")
    host = snapshot.host_devices.value.vendors.get(vendor)
    return handler or (host.default_handler if host is not None else "")


def _is_device_of(entry: AllocatedDevice, card: VendorDevice) -> bool:
    if card.kind.wire_type != entry.type:
        return False
    return entry.id == card.uuid if entry.id else entry.minor == card.minor


SLICE_CHECK_S = 1.0

RETRY_S, MAX_RETRY_S = 1.0, 60.0  # between two tries while requests remain

# between two tries that each ended the worker: rare enough to keep it out of quarantine
WORKER_RETRY_S, MAX_WORKER_RETRY_S = 60.0, 300.0

WORKER_FAILURES = (LATE, CLOSED)  # the worker does not answer any more


class _VendorSliceStatus(msgspec.Struct):
    """The state of one vendor's requests."""

    has_answered: bool = (
        False  # since the agent's start: slices of an earlier agent are reclaimed then
    )
    failures: int = 0
    retry_at_s: float = 0.0  # monotonic: when a failed request may be retried
    worker_failures: int = 0  # in a row
    worker_retry_s: float = 0.0  # monotonic: no request before this time
    last_requests: frozenset[SliceRequest] = frozenset()  # missing slices at the last try
    reported_problems: frozenset[tuple[str, str, str]] = frozenset()  # pod, device, reason


class SliceManager:
    """Makes slices, on the loop thread. A repeated request for existing slices changes nothing."""

    def __init__(
        self,
        store: SnapshotStore,
        vendors: VendorManager,
        messages: MessageQueue,
        clock: Clock,
        *,
        slicers: Mapping[str, SlicesDevices],
        grace_s: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`vendors` sends requests to the vendors' workers; `slicers` are the vendors, by name.

        `grace_s`: how long a pod still counts as present after it disappeared from all lists.
        """
        self._slicers = slicers
        self._store = store
        self._vendor_manager = vendors
        self._messages = messages
        self._clock = clock
        self._grace_s = grace_s
        self._sleep = sleep
        self._vendors: dict[str, _VendorSliceStatus] = {}
        self._unlisted_since_s: dict[
            str, float
        ] = {}  # by uid: monotonic time of its disappearance from all lists
        self.reclaimed_count = 0

    async def run(self) -> None:
        """Run a step each second, for ever."""
        while True:
            await self.step()
            await self._sleep(SLICE_CHECK_S)

    async def step(self) -> None:
        """Update every vendor whose worker answers."""
        snapshot = self._store.current
        requests, pods = slice_requests(snapshot, self._slicers), self._pods_with_grace(snapshot)
        for state in snapshot.vendors:
            if state.state == "ready":
                own_requests = requests.get(state.vendor, ())
                if pods is not None:  # an allocation is known a little longer than its pod
                    own_requests = tuple(request for request in own_requests if request.pod in pods)
                await self._update_vendor(snapshot, state.vendor, own_requests, pods)

    def _pods_with_grace(self, snapshot: NodeSnapshot) -> frozenset[str] | None:
        """Return the live pods, with those that disappeared a short while ago."""
        pods, now_s = live_pods(snapshot), self._clock.monotonic()
        if pods is None:
            self._unlisted_since_s.clear()  # the time of disappearance is unknown after a gap
            return None
        owners = {
            pod for state in snapshot.vendors for pod, _ in slice_owners(snapshot, state.vendor)
        }
        self._unlisted_since_s = {
            uid: self._unlisted_since_s.get(uid, now_s) for uid in owners - pods
        }
        recent = {
            u for u, since_s in self._unlisted_since_s.items() if now_s - since_s < self._grace_s
        }
        return pods | recent

    async def _update_vendor(
        self,
        snapshot: NodeSnapshot,
        vendor: str,
        requests: tuple[SliceRequest, ...],
        pods: frozenset[str] | None,
    ) -> None:
        status = self._vendors.setdefault(vendor, _VendorSliceStatus())
        existing = slice_owners(snapshot, vendor)
        missing = frozenset(
            request for request in requests if (request.pod, request.device) not in existing
        )
        has_orphans = pods is not None and any(pod not in pods for pod, _ in existing)
        # without pod lists it is unknown which slices to reclaim
        is_first = not status.has_answered and pods is not None
        now_s = self._clock.monotonic()
        is_early = now_s < status.retry_at_s and missing <= status.last_requests
        if not (missing or has_orphans or is_first) or is_early or now_s < status.worker_retry_s:
            return
        status.last_requests = missing
        listed = None if pods is None else tuple(sorted(pods))
        try:
            report = await self._vendor_manager.request(vendor, CutSlicesRequest(requests, listed))
        except WorkerError as error:
            self._record_failure(vendor, status, requests, error)
            return
        status.has_answered = status.has_answered or pods is not None
        status.worker_failures = 0
        # back off if the worker changed nothing although slices are missing or orphaned
        is_unchanged = bool(missing or has_orphans) and not report.changed
        self._record_report(
            status, report, is_done=not (report.unmade or report.failed or is_unchanged)
        )

    def _record_failure(
        self,
        vendor: str,
        status: _VendorSliceStatus,
        requests: tuple[SliceRequest, ...],
        error: WorkerError,
    ) -> None:
        self._delay_retry(status)
        if error.reason in WORKER_FAILURES:
            status.worker_failures += 1
            wait_s = min(
                MAX_WORKER_RETRY_S, WORKER_RETRY_S * 2.0 ** min(status.worker_failures - 1, 10)
            )
            status.worker_retry_s = self._clock.monotonic() + wait_s
        if error.reason == "NotSupported":
            status.has_answered = True
        else:
            fields = {"vendor": vendor, "error": str(error)}
            log.warning("slices_not_kept", extra=fields)
        problems = {(w.pod, w.device, error.reason): str(error) for w in requests}
        self._report_new_problems(status, problems)

    def _record_report(
        self, status: _VendorSliceStatus, report: SliceReport, *, is_done: bool
    ) -> None:
        if is_done:
            status.failures, status.retry_at_s = 0, 0.0
        else:
            self._delay_retry(status)
        self.reclaimed_count += len(report.reclaimed)
        for description in report.reclaimed:
            self._report_event(
                "", "SliceReclaimed", f"{description} was taken back: the pod is gone"
            )
        for pod in report.lost:
            self._report_event(
                pod, "SliceLost", "a reset of the card took the slice that the pod uses"
            )
        problems = {(one.pod, one.device, one.reason): one.message for one in report.unmade}
        problems.update(
            {("", description, "SliceNotReclaimed"): description for description in report.failed}
        )
        self._report_new_problems(status, problems)

    def _report_new_problems(
        self, status: _VendorSliceStatus, problems: Mapping[tuple[str, str, str], str]
    ) -> None:
        """Report each problem once while it lasts."""
        for (pod, device, reason), message in problems.items():
            if (pod, device, reason) not in status.reported_problems:
                self._report_event(pod, reason, message)
        status.reported_problems = frozenset(problems)

    def _report_event(self, pod_uid: str, reason: str, message: str) -> None:
        """Report an event of a pod, or of the node if `pod_uid` is empty."""
        pod = _pod_reference(self._store.current, pod_uid)
        text = message if pod is not None or not pod_uid else f"pod {pod_uid}: {message}"
        self._messages.put(EventReported(reason, text, pod))

    def _delay_retry(self, status: _VendorSliceStatus) -> None:
        status.failures += 1
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(status.failures - 1, 10))
        status.retry_at_s = self._clock.monotonic() + wait_s


def _pod_reference(snapshot: NodeSnapshot, uid: str) -> PodRef | None:
    """Return the pod of a uid; `None` if it has no device allocation, which has its name."""
    allocation = snapshot.allocations.value.pods.get(uid)
    if allocation is None:
        return None
    return PodRef(namespace=allocation.namespace or "default", name=allocation.name, uid=uid)
