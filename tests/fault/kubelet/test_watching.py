"""The poller against a kubelet over real TLS that is absent, hangs, restarts and comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent.clock import ManualClock
from agent.config.cluster import KubeletSettings
from agent.kube.credentials import TokenFile
from agent.kubelet.client import KubeletClient
from agent.kubelet.poller import KubeletFactsSource, KubeletPoller
from agent.snapshot.cluster import (
    KUBELET_ABSENT,
    KUBELET_FORBIDDEN,
    KUBELET_HANGING,
    KUBELET_OK,
    ClusterView,
    KubeletView,
    NodeView,
)
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.fault.kubelet.fake_http import HANG, TOKEN, FakeKubelet, pod
from tests.patience import PATIENCE_S
from tests.stepped import run_stepped, stepped_loop, turns

TIMEOUT_S = 2.0


class Watched:
    """A kubelet, who asks it, and what came of the last look."""

    def __init__(self, folder: Path) -> None:
        self.kubelet = FakeKubelet(folder)
        self.kubelet.pods = [pod("a"), pod("b")]
        self.kubelet.config = {"cgroupDriver": "systemd"}
        self.clock = ManualClock()
        token = folder / "token"
        token.write_text(TOKEN)
        settings = KubeletSettings(timeout_s=TIMEOUT_S)
        credentials = TokenFile(str(token), self.clock)
        self.store = store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        self.client = KubeletClient(settings, credentials, store, self.clock)
        self.pods: SnapshotPart[tuple[PodView, ...]] = SnapshotPart(())
        self.facts: SnapshotPart[KubeletView | None] = SnapshotPart(None)
        self.poller = KubeletPoller(
            self.client,
            self.clock,
            settings,
            facts=KubeletFactsSource(self.client, self.clock, store, None, "/var/lib/kubelet"),
            listener=self,
        )

    def _node(self) -> NodeView:
        address = (("InternalIP", self.kubelet.host),)
        return NodeView(name="n", uid="u", addresses=address, kubelet_port=self.kubelet.port)

    def update_kubelet_pods(self, part: SnapshotPart[tuple[PodView, ...]]) -> None:
        self.pods = part

    def update_kubelet_facts(self, part: SnapshotPart[KubeletView | None]) -> None:
        self.facts = part

    async def look(self) -> str:
        """Look once. Time passes only while the kubelet hangs, so that nothing else is late."""
        self.store.put(cluster=ClusterView(node=SnapshotPart(self._node())))
        hangs = self._hangs()
        look = asyncio.create_task(self.poller.poll())
        while not look.done():
            if self._hangs() > hangs:
                stepped_loop().advance(TIMEOUT_S / 4)
            await turns()
        self.clock.advance(await look)
        return self.poller.state.pods

    def _hangs(self) -> int:
        return sum(requests.status == HANG for requests in self.kubelet.asked)

    def request_count(self, path: str) -> int:
        return sum(requests.path == path for requests in self.kubelet.asked)


def watching(folder: Path, test: Callable[[Watched], Awaitable[None]]) -> None:
    watched = Watched(folder)

    async def live() -> None:
        async with watched.kubelet.running():
            try:
                await test(watched)
            finally:
                await watched.client.close()

    run_stepped(live())


def test_a_kubelet_that_is_absent_at_the_start_is_known_when_it_comes(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        await watched.kubelet.stop()
        for _ in range(3):
            assert await watched.look() == KUBELET_ABSENT
        assert watched.pods.taken_s is None
        assert watched.facts.value is None
        await watched.kubelet.start()
        assert await watched.look() == KUBELET_OK
        assert len(watched.pods.value) == 2
        assert watched.facts.value == KubeletView(cgroup_driver="systemd")

    watching(tmp_path, test)


def test_a_kubelet_that_goes_away_leaves_its_pods_with_their_age(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        assert await watched.look() == KUBELET_OK
        taken_s = watched.pods.taken_s
        await watched.kubelet.stop()
        for _ in range(4):
            assert await watched.look() == KUBELET_ABSENT
        assert len(watched.pods.value) == 2
        assert watched.pods.taken_s == taken_s
        assert watched.facts.value is not None

    watching(tmp_path, test)


def test_a_hanging_kubelet_costs_one_deadline_and_gets_no_further_requests(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        assert await watched.look() == KUBELET_OK
        watched.kubelet.faults["/pods/"] = HANG
        watched.clock.advance(600)  # its settings are due
        assert await watched.look() == KUBELET_HANGING
        assert watched.request_count("/configz") == 1
        assert len(watched.pods.value) == 2
        watched.kubelet.faults.clear()
        assert await watched.look() == KUBELET_OK
        assert watched.poller.state.restarts == 1

    watching(tmp_path, test)


def test_settings_that_hang_hold_up_no_pods(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        watched.kubelet.faults["/configz"] = HANG
        for _ in range(4):
            assert await watched.look() == KUBELET_OK
        assert len(watched.pods.value) == 2
        assert watched.poller.state.config == KUBELET_HANGING
        # less and less often, though each time a connection was given up
        assert watched.request_count("/configz") == 2

    watching(tmp_path, test)


def test_a_kubelet_that_restarts_between_two_polls_is_asked_for_its_settings(
    tmp_path: Path,
) -> None:
    async def test(watched: Watched) -> None:
        assert await watched.look() == KUBELET_OK
        assert await watched.look() == KUBELET_OK
        assert watched.request_count("/configz") == 1
        await watched.kubelet.stop()
        watched.kubelet.config = {"cgroupDriver": "cgroupfs"}
        await watched.kubelet.start()
        assert await watched.look() == KUBELET_OK
        assert watched.facts.value == KubeletView(cgroup_driver="cgroupfs")

    watching(tmp_path, test)


def test_a_kubelet_that_is_starting_lists_no_pods_and_takes_none_from_us(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        assert await watched.look() == KUBELET_OK
        watched.kubelet.pods = []
        assert await watched.look() == "empty"
        assert len(watched.pods.value) == 2
        assert watched.pods.error

    watching(tmp_path, test)


def test_a_right_that_lacks_for_settings_is_named_and_costs_no_pods(tmp_path: Path) -> None:
    async def test(watched: Watched) -> None:
        watched.kubelet.rights["agent"] = {"nodes/pods"}
        assert await watched.look() == KUBELET_OK
        assert watched.poller.state.config == KUBELET_FORBIDDEN
        assert "nodes/configz" in watched.poller.state.detail

    watching(tmp_path, test)


def test_grpc_and_protobuf_are_loaded_when_they_are_used() -> None:
    modules = ("agent.app.cluster", "agent.kubelet.container_runtime")
    heavy = ("grpc", "google.protobuf", "proto.gen")
    code = (
        f"import sys, {', '.join(modules)}\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert result.stdout.strip() == "[]"
