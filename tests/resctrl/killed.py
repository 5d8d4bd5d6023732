"""An agent that is killed before each of its system calls, on a mounted resctrl file system."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from agent.cgroup.ledger import ChangeLedger
from agent.clock import ManualClock
from agent.config.containers import ResctrlSettings
from agent.resctrl.files import KernelResctrlFiles
from agent.resctrl.manager import ResctrlManager
from tests.kill_steps import killed_at
from tests.resctrl.agent_session import LAYOUT, MOUNT, Place
from tests.unit.resctrl.scene import BOOT, HALF, SLO_STALE_S, Scene, qos


def failures_of_killed_agents(
    root: Path, folder: Path, place: Place, child: int
) -> Iterator[str | None]:
    """Kill an agent before its n-th change, for each n; yield what is wrong after it, or `None`.

    Another agent finishes the plan then, and a third one takes it back.
    """
    scene = Scene()
    scene.add_pod(1, "BE", tasks=0)
    scene.add_pod(2, "LS", HALF, tasks=0)
    scene.set_class("BE", qos(0, 30, 30))
    place(scene.pods[1].containers[0].cgroup, child)
    mount = root / MOUNT
    step, was_killed = 0, True
    while was_killed:
        ledger = folder / str(step) / "ledger.log"
        was_killed = killed_at(step, partial(_run, "on", root, ledger, scene))
        _run("on", root, ledger, scene)
        names = sorted(path.parent.name for path in mount.glob("*/schemata"))
        schemata = (mount / "BE" / "schemata").read_text() if names else ""
        tasks = (mount / "BE" / "tasks").read_text().split() if names else []
        _run("off", root, ledger, scene)
        remaining = sorted(path.parent.name for path in mount.glob("*/schemata"))
        result = (names, schemata, tasks, remaining)
        expected: tuple[object, ...] = (
            ["BE", f"koordlet-{scene.pods[2].uid}"],
            "    MB:0= 30;1= 30\n    L3:0=00f;1=00f\n",
            [str(child)],
            [],
        )
        yield None if result == expected else f"step {step}: {result}"
        step += 1


def _run(mode: str, root: Path, ledger_path: Path, scene: Scene) -> None:
    ledger = ChangeLedger(str(ledger_path), BOOT)
    ledger.load()
    manager = ResctrlManager(
        ledger=ledger,
        clock=ManualClock(),
        mode=mode,
        settings=ResctrlSettings(),
        slo_stale_s=SLO_STALE_S,
        files=KernelResctrlFiles(str(root)),
    )
    manager.cycle(scene.snapshot, LAYOUT)
