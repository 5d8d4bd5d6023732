from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.daemon.containers.asking import MAX_WRITING, Asker
from agent.model.grant.container import Container
from agent.model.grant.edits import ContainerEdits, FolderEdit, Note
from agent.model.runtime.adjustment import NOTHING, Adjustment, Resources
from agent.model.runtime.request import HookRequest, Stage
from agent.model.runtime.seen import SandboxSeen
from agent.model.snapshot import NodeIdentity, NodeSnapshot
from agent.publish.eventing.event import PodRef

POD = SandboxSeen(id="s", uid="u", name="web", namespace="shop")
MAIN = Container(name="main", pod_uid="u")
RUN = HookRequest(stage=Stage.RUN_POD, pod=POD)
CREATE = HookRequest(stage=Stage.CREATE, pod=POD, container=MAIN)
SHARES = Adjustment(resources=Resources(shares=2))


class Says:
    """A hook that has one answer to all."""

    name = "says"
    stages = frozenset(Stage)
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
        self.told: list[tuple[str, PodRef | None]] = []
        self.given: list[HookRequest] = []
        self.written: list[HookRequest] = []
        self._write = write
        self.asker = Asker(
            (Says(answer),),
            {"says": "on"},
            lambda: NodeSnapshot(node=NodeIdentity(name="n")),
            ManualClock(),
            tell=lambda reason, _, pod: self.told.append((reason, pod)),
            write_pod=self._write_pod,
            given=self.given.append,
            files=files,
        )

    async def ask(self, request: HookRequest) -> Adjustment:
        """Ask, and wait if there is something to wait for."""
        said = self.asker.ask(request)
        return said if isinstance(said, Adjustment) else await said

    def _write_pod(self, request: HookRequest) -> None:
        self._write()
        self.written.append(request)


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
    rig = Rig(NOTHING, files)
    assert rig.asker.ask(RUN) is NOTHING
    assert rig.written == []


def test_pods_are_run_while_the_thread_of_the_files_hangs_and_few_wait_for_it(
    files: ThreadPoolExecutor,
) -> None:
    let_go = threading.Event()
    rig = Rig(SHARES, files, lambda: let_go.wait(60.0))

    async def run() -> None:
        await asyncio.gather(*(rig.ask(RUN) for _ in range(3 * MAX_WRITING)))
        assert rig.written == []
        let_go.set()
        await asyncio.get_running_loop().run_in_executor(files, str)  # behind those that wait

    try:
        asyncio.run(run())
    finally:
        let_go.set()
    assert len(rig.written) == MAX_WRITING


def test_what_was_asked_for_is_remembered_where_the_answer_changes_it(
    files: ThreadPoolExecutor,
) -> None:
    rig, idle = Rig(SHARES, files), Rig(NOTHING, files)
    assert rig.asker.ask(CREATE) == SHARES
    assert idle.asker.ask(CREATE) == NOTHING
    assert (rig.given, idle.given) == ([CREATE], [])


def test_a_refusal_and_what_people_should_know_are_told_of_the_pod(
    files: ThreadPoolExecutor,
) -> None:
    notes = (Note(reason="SoftIsolation", message="by a library"),)
    rig = Rig(Adjustment(failed="DeviceTaken: by another", reason="DeviceTaken"), files)
    other = Rig(Adjustment(edits=ContainerEdits(notes=notes)), files)
    asyncio.run(rig.ask(CREATE))
    asyncio.run(other.ask(CREATE))
    ref = PodRef(namespace="shop", name="web", uid="u")
    assert (rig.told, other.told) == ([("DeviceTaken", ref)], [("SoftIsolation", ref)])
    assert rig.asker.figures.refusals == {"DeviceTaken": 1}


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
    assert [reason for reason, _ in rig.told] == ["FolderNotMade"]
