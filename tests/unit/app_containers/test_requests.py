from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.allocation.index import AllocationIndex
from agent.clock import ManualClock
from agent.containers.dispatch import MAX_PENDING_PODS, Answers, ContainerAdjuster
from agent.messages import MessageQueue
from agent.snapshot.container import (
    NO_ADJUSTMENT,
    Adjustment,
    ContainerSpec,
    HookRequest,
    HookStage,
    LinuxResources,
    PodSandbox,
    RuntimeView,
)
from agent.snapshot.edits import ContainerEdits, ContainerNote, FolderEdit
from agent.snapshot.node import NodeIdentity, NodeSnapshot, SnapshotStore
from agent.snapshot.pod import PodRef

POD = PodSandbox(id="s", uid="u", name="web", namespace="shop")
MAIN = ContainerSpec(name="main", pod_uid="u")
RUN = HookRequest(stage=HookStage.RUN_POD, pod=POD)
CREATE = HookRequest(stage=HookStage.CREATE, pod=POD, container=MAIN)
SHARES = Adjustment(resources=LinuxResources(shares=2))


class Says:
    """A hook that has one answer to all."""

    name = "says"
    stages = frozenset(HookStage)
    required = True

    def __init__(self, answer: Adjustment) -> None:
        self._answer = answer

    def adjust(self, _: HookRequest, __: NodeSnapshot) -> Adjustment:
        """Give the answer."""
        return self._answer


class Rig:
    """An asker with one hook, and what became of its answers."""

    def __init__(
        self, answer: Adjustment, files: ThreadPoolExecutor, write: Callable[[], object] = str
    ) -> None:
        self.messages = MessageQueue()
        self.given: list[tuple[HookRequest, Answers]] = []
        self.written: list[HookRequest] = []
        self.missed: list[tuple[Mapping[str, str], Mapping[str, str]]] = []
        self._write = write
        self.clock = ManualClock()
        self.store = SnapshotStore(NodeSnapshot(node=NodeIdentity(name="n")))
        self.asker = ContainerAdjuster(
            (Says(answer),),
            {"says": "on"},
            self.store,
            self.clock,
            messages=self.messages,
            pod_files=self,
            files=files,
            index=AllocationIndex(),
        )

    def new_events(self) -> list[tuple[str, PodRef | None]]:
        """Return the events since the last call."""
        return [(event.reason, event.pod) for event in self.messages.drain_events()]

    async def ask(self, request: HookRequest) -> Adjustment:
        """Ask, and wait if there is something to wait for."""
        output = self.asker.adjust(request)
        return output if isinstance(output, Adjustment) else await output

    def write_pod(self, request: HookRequest) -> None:
        """Write a pod's files."""
        self._write()
        self.written.append(request)

    def record_requested_values(self, request: HookRequest, answers: Answers) -> None:
        """Write down what was requested and answered."""
        self.given.append((request, answers))

    def prioritise_missed_pods(self, before: RuntimeView, now: RuntimeView) -> None:
        """Write down what was missed."""
        self.missed.append((before.missed, now.missed))


@pytest.fixture
def files() -> Iterator[ThreadPoolExecutor]:
    """Yield the thread of the files."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_files_of_a_new_pod_are_written_before_the_answer(files: ThreadPoolExecutor) -> None:
    rig = Rig(Adjustment(bvt_warp_ns=-1), files)
    asyncio.run(rig.ask(RUN))
    assert rig.written == [RUN]


def test_nothing_is_waited_for_where_nothing_is_to_be_written(files: ThreadPoolExecutor) -> None:
    rig = Rig(NO_ADJUSTMENT, files)
    assert rig.asker.adjust(RUN) is NO_ADJUSTMENT
    assert rig.written == []


def test_pods_are_run_while_the_thread_of_the_files_hangs_and_few_wait_for_it(
    files: ThreadPoolExecutor,
) -> None:
    let_go = threading.Event()
    rig = Rig(SHARES, files, lambda: let_go.wait(60.0))

    async def run() -> None:
        await asyncio.gather(*(rig.ask(RUN) for _ in range(3 * MAX_PENDING_PODS)))
        assert rig.written == []
        let_go.set()
        await asyncio.get_running_loop().run_in_executor(files, str)  # behind those that wait

    try:
        asyncio.run(run())
    finally:
        let_go.set()
    assert len(rig.written) == MAX_PENDING_PODS


def test_requested_values_are_recorded_if_the_answer_changes_them(
    files: ThreadPoolExecutor,
) -> None:
    rig, idle = Rig(SHARES, files), Rig(NO_ADJUSTMENT, files)
    assert rig.asker.adjust(CREATE) == SHARES
    assert idle.asker.adjust(CREATE) == NO_ADJUSTMENT
    assert (rig.given, idle.given) == ([(CREATE, ((Says.name, SHARES),))], [])


def test_a_refusal_and_notes_are_reported_for_the_pod(
    files: ThreadPoolExecutor,
) -> None:
    notes = (ContainerNote(reason="SoftIsolation", message="by a library"),)
    rig = Rig(Adjustment(failed="DeviceTaken: by another", reason="DeviceTaken"), files)
    other = Rig(Adjustment(edits=ContainerEdits(notes=notes)), files)
    asyncio.run(rig.ask(CREATE))
    asyncio.run(other.ask(CREATE))
    ref = PodRef(namespace="shop", name="web", uid="u")
    assert (rig.new_events(), other.new_events()) == (
        [("DeviceTaken", ref)],
        [("SoftIsolation", ref)],
    )
    assert rig.asker.counters.refusals == {"DeviceTaken": 1}


def test_a_container_whose_folder_cannot_be_made_is_refused(
    files: ThreadPoolExecutor, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    good, bad = (
        Adjustment(edits=ContainerEdits(folders=(FolderEdit(host_path=str(path), mode=0o755),)))
        for path in (tmp_path / "a" / "b", tmp_path / "file" / "b")
    )
    assert asyncio.run(Rig(good, files).ask(CREATE)) == good
    assert (tmp_path / "a" / "b").is_dir()
    rig = Rig(bad, files)
    assert asyncio.run(rig.ask(CREATE)).reason == "FolderNotMade"
    assert [reason for reason, _ in rig.new_events()] == ["FolderNotMade"]


def test_the_view_has_the_time_of_its_last_change_of_state(files: ThreadPoolExecutor) -> None:
    rig = Rig(NO_ADJUSTMENT, files)
    for state, after_s in (("waiting", 0.0), ("synchronized", 0.0), ("synchronized", 10.0)):
        rig.clock.advance(10.0)
        rig.asker.view_changed(RuntimeView(state=state))
        runtime = rig.store.current.runtime
        assert (runtime.value.state, runtime.taken_s) == (state, rig.clock.monotonic())
        assert runtime.value.turned_s == rig.clock.wall() - after_s


def test_pods_that_the_hooks_missed_are_preferred(files: ThreadPoolExecutor) -> None:
    rig = Rig(NO_ADJUSTMENT, files)
    rig.asker.view_changed(RuntimeView(missed={"c": "BudgetExceeded"}))
    rig.asker.view_changed(replace(rig.store.current.runtime.value, reason="Other"))
    assert rig.missed == [({}, {"c": "BudgetExceeded"})]
