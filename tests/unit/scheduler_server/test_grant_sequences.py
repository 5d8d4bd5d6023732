"""Devices through any sequence of bindings, deletions, late watches, relists and restarts."""

from __future__ import annotations

from collections import Counter, deque

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plugins.scheduler.cluster_state import AssignedPod, ClusterState
from plugins.scheduler.decisions import DecisionMaker
from plugins.scheduler.devices.allocator import NodeRefused
from plugins.scheduler.devices.device_table import GPU, GPU_CORE, GPU_MEMORY_RATIO
from plugins.scheduler.numa.cpu_request import pod_request
from plugins.scheduler.pod_object import PodKey, SchedulerPod
from plugins.scheduler.server.binding import assigned_pod, pod_annotations
from plugins.scheduler.server.cluster_feed import PodChanges
from tests.unit.scheduler.vectors import NODES, RDMA_NAME

NODE_NAMES = ("a", "b")
REQUESTS = (
    {"nvidia.com/gpu": 1},
    {"koordinator.sh/gpu": 300},
    {GPU_CORE: 30, GPU_MEMORY_RATIO: 30},
    {"nvidia.com/gpu": 2, RDMA_NAME: 100},
)


class Grants(RuleBasedStateMachine):
    """A server with pods, and a replica that hears of changes late and may miss them."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, SchedulerPod] = {}  # at the server, by namespace/name
        # key, pod, is it deleted; no pod: it has ended
        self.events: deque[tuple[str, SchedulerPod | None, bool]] = deque()
        self.ended: set[str] = set()  # that are at the server still, by namespace/name
        self.number = 0
        self.begin()

    def begin(self) -> None:
        self.state = ClusterState()
        self.pods = PodChanges(self.state)
        for name in NODE_NAMES:
            self.state.set_node(name, {})
            self.add_devices(name)

    def add_devices(self, name: str) -> None:
        self.state.set_devices(msgspec.structs.replace(NODES["A"], node=name))

    @rule(amounts=st.sampled_from(REQUESTS), node=st.sampled_from(NODE_NAMES))
    def bind(self, amounts: dict[str, int], node: str) -> None:
        """Bind a new pod as the binder does; the watch reports it later."""
        self.number += 1
        key = PodKey(f"u{self.number}", "ns", f"p{self.number}")
        pod = SchedulerPod(key=key, amounts=amounts)
        try:
            grant = DecisionMaker(self.state).allocate(pod_request(pod), node)
        except NodeRefused:
            return
        annotations = pod_annotations(grant, {})
        bound = msgspec.structs.replace(pod, node=node, annotations=annotations)
        assigned = assigned_pod(bound)
        assert assigned is not None
        self.state.set_pod(assigned)
        self.stored[f"ns/{key.name}"] = bound
        self.events.append((f"ns/{key.name}", bound, False))

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.stored)))
        self.events.append((key, self.stored.pop(key), True))

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.stored)))
        del self.stored[key]
        self.ended.add(key)
        self.events.append((key, None, False))

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def delete_ended(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.ended)))
        self.ended.remove(key)
        self.events.append((key, None, True))

    @rule(count=st.integers(1, 4))
    def watch(self, count: int) -> None:
        for _ in range(min(count, len(self.events))):
            key, pod, is_deleted = self.events.popleft()
            if is_deleted:
                self.pods.remove_object(key, pod)
            else:
                self.pods.set_object(key, pod)

    @rule()
    def relist(self) -> None:
        """The watch ends, and what happened since is never reported."""
        self.events.clear()
        self.pods.replace_objects(self.listed())
        self.confirm(self.pods.unreported())

    def confirm(self, pods: tuple[AssignedPod, ...]) -> None:
        """Read the pods as the binder does."""
        for pod in pods:
            if f"ns/{pod.key.name}" not in self.stored:
                self.state.remove_pod(pod.key.uid)

    @rule()
    def restart(self) -> None:
        self.events.clear()
        self.begin()
        self.pods.replace_objects(self.listed())

    def listed(self) -> dict[str, SchedulerPod | None]:
        return {**dict.fromkeys(sorted(self.ended)), **self.stored}

    @rule(node=st.sampled_from(NODE_NAMES))
    def upgrade_agent(self, node: str) -> None:
        """The Device object is deleted and comes back."""
        self.state.remove_devices(node)
        self.add_devices(node)

    def used(self) -> dict[str, dict[tuple[str, int], int]]:
        """Return by node and card how many percent the pods at the server have."""
        used = {name: Counter[tuple[str, int]]() for name in NODE_NAMES}
        for pod in self.stored.values():
            assigned = assigned_pod(pod)
            assert assigned is not None
            for entry in assigned.allocation:
                resource = GPU_CORE if entry.type == GPU else RDMA_NAME
                assert entry.minor is not None
                used[pod.node][entry.type, entry.minor] += entry.amount(resource) or 0
        return {name: dict(amounts) for name, amounts in used.items()}

    @invariant()
    def no_device_is_given_above_its_whole(self) -> None:
        """So that no exclusive device is given twice either."""
        for of_node in self.used().values():
            assert all(percent <= 100 for percent in of_node.values())

    @invariant()
    def once_all_is_reported_exactly_what_pods_have_is_in_use(self) -> None:
        if self.events:
            return
        for name, expected in self.used().items():
            usage = self.state.state(name).usage
            counted = {
                (kind, minor): amounts[GPU_CORE if kind == GPU else RDMA_NAME]
                for (kind, minor), amounts in usage.amounts.items()
            }
            assert counted == expected


Grants.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestGrants = pytest.mark.filterwarnings("ignore")(Grants.TestCase)
