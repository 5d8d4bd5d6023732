"""A stop in the middle of a start: nothing is left that others would trip over."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.process.agent import DEADLINE_S, ROOT, command
from tests.process.citizen import surroundings
from tests.process.containers.scene import LOOK_S, Scene, needs_root, play
from tests.process.containers.vendors import ascend, nvidia

pytestmark = needs_root
Moment = Callable[[Scene], bool]


def has_printed(scene: Scene, words: str) -> bool:
    return words in (scene.folder / "said").read_text()


MOMENTS: dict[str, Moment] = {
    "host-chosen": lambda scene: has_printed(scene, "This machine"),
    "runtime-dialled": lambda scene: bool(scene.runtime.seen),
    "kubelet-asked": lambda scene: bool(scene.kubelet.registered),
    "cdi-begun": lambda scene: (scene.folder / "cdi").exists(),
}


async def stopped_at(scene: Scene, moment: Moment) -> int:
    """Start the agent, stop it at a moment of its start, and return its status."""
    folder = scene.folder / "node"
    folder.mkdir(exist_ok=True)
    with (scene.folder / "said").open("w") as out, (folder / "stderr.log").open("a") as log:
        process = subprocess.Popen(
            command("run", "--listen", "127.0.0.1:0"),
            stdout=out,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **surroundings(scene.api, folder), **scene.settings()},
        )
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not moment(scene):
                assert process.poll() is None, "it ended before"
                await asyncio.sleep(LOOK_S / 10)
        process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(process.wait, DEADLINE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def is_free(path: Path) -> bool:
    """Say whether nobody holds a lock; one that was never made is free."""
    if not path.exists():
        return True
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def forget(scene: Scene) -> None:
    """Forget what the agent before left on purpose."""
    scene.runtime.seen.clear()
    scene.kubelet.registered.clear()
    shutil.rmtree(scene.folder / "cdi", ignore_errors=True)


def test_a_stop_during_a_start_leaves_no_socket_no_lock_and_no_half_file() -> None:
    async def act(scene: Scene) -> None:
        nvidia(scene, 2)
        ascend(scene, 2)  # of whom CDI files are kept
        scene.tell(DEVICE_PLUGIN__VENDORS="nvidia")
        await scene.kubelet.start()
        run = scene.folder / "node" / "run"
        for name, moment in MOMENTS.items():
            forget(scene)
            assert await stopped_at(scene, moment) == 0, name
            assert is_free(run / "lock"), name
            assert is_free(run / "nri.lock"), name
            assert not (scene.folder / "node" / "admin.sock").exists(), name
            assert [path.name for path in scene.kubelet.folder.glob("xpu-agent*")] == [], name
            for path in (scene.folder / "cdi").glob("*"):
                assert path.suffix == ".json", name
                assert json.loads(path.read_text())["devices"], name
        assert "Traceback" not in scene.log()
        assert "ended without leaving" not in scene.log()

    play(act, cards=0)
