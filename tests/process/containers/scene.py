"""The agent as a process between a cluster, a strict runtime and a strict kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.app.identity import read_machine
from agent.host.files import LiveHostFiles
from tests.apiserver import ApiServer
from tests.apiserver.admin import node
from tests.kubelet.manager import FakeKubelet
from tests.process.agent import DEADLINE_S, PATIENT, ROOT, Agent, command
from tests.process.citizen import NODE, ROLES, citizen
from tests.runtime import CONTAINERD_2_3, CreatedContainer, Failed, Pod, Runtime

GRANT = "scheduling.koordinator.sh/device-allocated"
REQUESTS = {"limits": {"koordinator.sh/gpu": "800", "koordinator.sh/rdma": "800"}}  # is granted
MAJOR = 240  # for local use: no driver has it
LOOK_S = 0.02
AGAIN_S = 0.1
NOT_LISTED = "PodRequestsUnknown"  # the reason of a refusal until the pod is listed
# reasons that hold only until the agent has heard of the pod, its cards, and the host's nodes
TEMPORARY = (NOT_LISTED, "DevicesNotKnownYet", "HostNotReadYet")
ANY_REASON = ("",)
WHOLE = {f"koordinator.sh/{name}": "100" for name in ("gpu-core", "gpu-memory-ratio")}

# device nodes are made below a folder that stands for the host's root
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes")

Play = Callable[["Scene"], Awaitable[None]]


def grant_annotation(*numbers: int, kind: str = "gpu") -> str:
    """Return the annotation that grants whole cards of the file."""
    entries = [{"minor": n, "id": f"FAKE-{n}", "resources": WHOLE} for n in numbers]
    return json.dumps({kind: entries})


def requests_of(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return what a pod asks for to be granted this; nothing for what no scheduler writes."""
    try:
        entries = json.loads(annotations[GRANT])["gpu"]
    except (KeyError, ValueError, TypeError):
        return {}
    amounts: dict[str, str] = {}
    for entry in entries:
        for name, amount in entry["resources"].items():
            known = amounts.get(name)
            amounts[name] = amount if known is None else str(int(known) + int(amount))
    return {"limits": amounts}


class Scene:
    """One node. `begin` starts the agent, again and again; everything else lives on meanwhile."""

    def __init__(self, folder: Path, api: ApiServer, runtime: Runtime) -> None:
        self.folder, self.api, self.runtime = folder, api, runtime
        self.kubelet = FakeKubelet(folder / "k" / "device-plugins")
        self.root = folder / "root"
        self._stack = contextlib.ExitStack()
        self._agent: Agent | None = None
        self._more: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()  # a program that starts the agent
        (folder / "k").mkdir()
        (self.root / "dev").mkdir(parents=True)

    @property
    def agent(self) -> Agent:
        """The agent that runs."""
        assert self._agent is not None
        return self._agent

    def settings(self) -> dict[str, str]:
        """Return what tells the agent where everything of this node is."""
        return {
            "XPU_AGENT_NODE__HOST_ROOT": str(self.root),
            "XPU_AGENT_NODE__STATE_DIR": str(self.folder / "state"),
            "XPU_AGENT_KUBELET__ENABLED": "false",
            "XPU_AGENT_KUBELET__ROOT_DIR": str(self.folder / "k"),
            "XPU_AGENT_NRI__SOCKET": str(self.runtime.socket),
            "XPU_AGENT_CDI__DIR": str(self.folder / "cdi"),
            "XPU_AGENT_PROOF__ENABLED": "false",  # pids of the strict runtime are nobody's
            **self._more,
        }

    def node(self, path: str, minor: int, major: int = MAJOR) -> None:
        """Make a device node of the host."""
        where = self.root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(where, stat.S_IFCHR | 0o666, os.makedev(major, minor))

    def cards(self, count: int) -> None:
        """Describe so many cards in a file, and make their nodes."""
        devices = []
        for number in range(count):
            path = f"/dev/card{number}"
            if not (self.root / path.lstrip("/")).exists():
                self.node(path, number)
            devices.append(
                {
                    "uuid": f"FAKE-{number}",
                    "minor": number,
                    "memory_bytes": 1 << 36,
                    "resources": WHOLE,
                    "nodes": [{"path": path, "major": MAJOR, "minor": number}],
                }
            )
        (self.folder / "cards.yaml").write_text(json.dumps({"devices": devices}))
        self._more["XPU_AGENT_DISCOVERY__FAKE__FILE"] = str(self.folder / "cards.yaml")

    def tell(self, **settings: str) -> None:
        """Have every agent that begins from now on started with these settings."""
        self._more.update({f"XPU_AGENT_{name}": value for name, value in settings.items()})

    async def begin(self, *arguments: str, attached: bool = True) -> Agent:
        """Start the agent; with `attached` wait until the runtime has told of all its pods."""
        folder, own = self.folder / "node", self.settings()
        starting = citizen(self.api, folder, *arguments, prefix=self.prefix, **own)
        self._agent = await asyncio.to_thread(self._stack.enter_context, starting)
        if attached:
            await self.until(lambda: self.agent.check("runtime").startswith("[+]"), "in step")
        return self._agent

    async def kill(self) -> None:
        """End the agent without a word."""
        self.agent.process.kill()
        await asyncio.to_thread(self.agent.process.wait, DEADLINE_S)

    async def end(self) -> int:
        """Ask the agent to stop; return its status."""
        return await asyncio.to_thread(self.agent.end)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait while runtime and kubelet go on; fail after the deadline."""
        until_s = asyncio.get_running_loop().time() + DEADLINE_S
        while not await asyncio.to_thread(holds):
            ended = self.agent.process.poll()
            assert ended is None, f"the agent ended with {ended} while waiting for: {what}"
            assert asyncio.get_running_loop().time() < until_s, f"not in time: {what}"
            await asyncio.sleep(LOOK_S)

    async def get(self, path: str) -> str:
        """Return what the agent answers."""
        return (await asyncio.to_thread(self.agent.get, path))[1]

    async def part(self, name: str) -> Any:
        """Return a part about containers of the agent's snapshot."""
        return json.loads(await self.get("api/v1/snapshot"))["containers"][name]["value"]

    async def admin_socket(self) -> str:
        """Return the path of the agent's socket, which it opens after its page."""
        path = self.folder / "node" / "admin.sock"
        await self.until(path.exists, "the admin socket")
        return str(path)

    async def command(self, *arguments: str) -> Any:
        """Run a command beside the agent, with its settings; return how it ended."""
        listen = self._agent.url.split("/")[2] if self._agent is not None else "127.0.0.1:1"
        own = {
            **self.settings(),
            "XPU_AGENT_NODE__RUN_DIR": str(self.folder / "node" / "run"),
            "XPU_AGENT_METRICS__LISTEN": listen,
        }
        outcome = partial(
            subprocess.run,
            [*self.prefix, *command(*arguments)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=ROOT,
            env={**os.environ, **own},
            check=False,
        )
        return await asyncio.to_thread(outcome)

    async def doctor(self) -> dict[str, tuple[str, str]]:
        """Return what the doctor says by check: result, and what was seen."""
        outcome = await self.command("doctor", *PATIENT, "-o", "json")
        checks = json.loads(outcome.stdout)["checks"]
        return {check["id"]: (check["result"], check["seen"]) for check in checks}

    def bound(self, name: str, annotations: Mapping[str, str], **more: Any) -> str:
        """Make a pod of this node at the API server; return its uid."""
        requests = REQUESTS if GRANT in annotations else {}
        containers = [{"name": "main", "image": "i", "resources": more.pop("resources", requests)}]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "team-a",
                "annotations": dict(annotations),
                "labels": more.pop("labels", {}),
            },
            "spec": {"nodeName": NODE, "containers": containers, **more},
            "status": {"phase": "Pending"},
        }
        return str(self.api.put(pod)["metadata"]["uid"])

    def sandbox(self, name: str, uid: str, annotations: Mapping[str, str], **more: Any) -> Pod:
        """Return the same pod as the runtime knows it; nobody was told."""
        own = {"annotations": dict(annotations), **more}
        return self.runtime.pod(name, namespace="team-a", uid=uid, **own)

    async def start(
        self, name: str, annotations: Mapping[str, str], **more: Any
    ) -> CreatedContainer:
        """Bind a pod, run its sandbox, create and start its container; `Failed` if refused.

        The agent may hear of the pod after the runtime does: then the kubelet tries again.
        """
        uid = self.bound(name, annotations, **more)
        pod = self.sandbox(name, uid, annotations, labels=more.get("labels", {}))
        await self.runtime.run_pod(pod)
        container = await self.create_patiently(pod)
        await self.runtime.start(container)
        return container

    async def create_patiently(
        self, pod: Pod, reasons: Sequence[str] = TEMPORARY
    ) -> CreatedContainer:
        """Create a container as the kubelet does: it tries again while the reason is temporary."""
        until_s = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            try:
                return await self.runtime.create(pod, "main")
            except Failed as error:
                is_temporary = any(reason in str(error) for reason in reasons)
                if not is_temporary or asyncio.get_running_loop().time() > until_s:
                    raise
                await asyncio.sleep(AGAIN_S)

    def event_notes(self, pod: str) -> dict[str, str]:
        """Return the reasons of a pod's events at the API server, each with its words."""
        events = self.api.list("events")
        own = (event for event in events if event["regarding"]["name"] == pod)
        return {one["reason"]: one["note"] for one in own}

    def log(self) -> str:
        """Return what the agents wrote to standard error."""
        return (self.folder / "node" / "stderr.log").read_text()

    async def close(self) -> None:
        """End the agent, then all others."""
        await asyncio.to_thread(self._stack.close)
        await self.kubelet.stop()
        if sys.exc_info()[0] is not None and (self.folder / "node/stderr.log").exists():
            print(self.log()[-3000:])  # noqa: T201 - what a failed test needs


@contextlib.asynccontextmanager
async def _scene(api: ApiServer) -> AsyncIterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="x", dir="/tmp"))  # paths of sockets are short
    try:
        async with Runtime(folder, CONTAINERD_2_3) as runtime:
            scene = Scene(folder, api, runtime)
            try:
                yield scene
            finally:
                await scene.close()
            assert scene.kubelet.complaints == []
    finally:
        shutil.rmtree(folder)


def play(act: Play, *, cards: int = 2) -> None:
    """Run a test on a node of its own with so many described cards; nobody broke a rule."""

    async def whole(api: ApiServer) -> None:
        async with _scene(api) as scene:
            if cards:
                scene.cards(cards)
            await act(scene)

    own = node(NODE, machine_id=read_machine(LiveHostFiles()).machine_id)
    with ApiServer(objects=(own,), roles=ROLES) as api:
        asyncio.run(whole(api))
