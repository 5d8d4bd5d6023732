"""Files of a batch pod on this machine's kernel: set, told, kept by a second agent, put back."""

from __future__ import annotations

import json

from tests.process.citizen import NODE
from tests.process.containers.scene import Scene, play
from tests.realgroups import RealGroups, needs_v1, real_groups
from tests.runtime import CreatedContainer

pytestmark = needs_v1

SPEC = "node.koordinator.sh/extended-resource-spec"
REQUESTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": "64Mi"}
LIMITS = {"requests": REQUESTS, "limits": REQUESTS}
BATCH = {SPEC: json.dumps({"containers": {"main": LIMITS}})}
BEST_EFFORT = {"koordinator.sh/qosClass": "BE"}
FILES = ("cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes")
FIRST = ["1024", "-1", "9223372036854771712"]
DESIRED = ["512", "50000", str(64 << 20)]
# the quota of the class limits best-effort pods, and none of their own
LIMITED_BY_CLASS = {
    "apiVersion": "slo.koordinator.sh/v1alpha1",
    "kind": "NodeSLO",
    "metadata": {"name": NODE},
    "spec": {"resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cfsQuota"}},
}
# each hierarchy begins at a group of the test's own, as a node's does
OWN_GROUPS = """
for name in cpu cpuset memory; do
  mount --bind "/sys/fs/cgroup/$name$0" "/sys/fs/cgroup/$name" || exit
done
exec "$@"
"""


class BatchPod:
    """A batch pod in real groups, and its container."""

    def __init__(self, scene: Scene, groups: RealGroups) -> None:
        self._scene, self._groups = scene, groups
        top = groups.make(f"{groups.root}/kubepods")
        best_effort = groups.make(f"{top}/besteffort")
        scene.prefix = ("unshare", "--mount", "--", "sh", "-c", OWN_GROUPS, groups.root)
        uid = scene.bound("batch", BATCH, labels=BEST_EFFORT, resources=LIMITS)
        self.pod = scene.sandbox("batch", uid, BATCH, labels=BEST_EFFORT)
        self.pod.message.linux.cgroup_parent = f"/kubepods/besteffort/pod{uid}"
        self.group = groups.make(f"{best_effort}/pod{uid}")
        self.inner = ""

    async def start(self) -> CreatedContainer:
        """Run it, with a container whose group is as the kubelet asked, not as the runtime said."""
        await self._scene.runtime.run_pod(self.pod)
        container = await self._scene.runtime.create(self.pod, "main")
        self.inner = self._groups.make(f"{self.group}/{container.id}")
        await self._scene.runtime.start(container)
        self._groups.sleeper(self.inner)
        return container

    def values(self, group: str) -> list[str]:
        return [self._groups.get(group, name) for name in FILES]


def audited(scene: Scene) -> list[tuple[str, str, str]]:
    """Return what the agent says it changed, oldest first: file, before, after."""
    rows = json.loads(scene.agent.get("api/v1/audit")[1])["audit"]
    return [(row["key"], row["old"], row["new"]) for row in reversed(rows) if not row["errno"]]


def test_files_of_a_batch_pod_are_set_before_it_runs_kept_by_the_next_agent_and_restored() -> None:
    async def act(scene: Scene) -> None:
        with real_groups() as groups:
            batch = BatchPod(scene, groups)
            await scene.begin()
            container = await batch.start()
            assert batch.values(batch.group) == DESIRED
            assert (container.spec.cpu["shares"], container.spec.cpu["quota"]) == (512, 50_000)
            assert container.spec.memory_bytes == 64 << 20
            await scene.until(lambda: batch.values(batch.inner) == DESIRED, "the container's files")
            await scene.until(lambda: len(audited(scene)) == 2 * len(FILES), "what was changed")
            assert ("memory.limit_in_bytes", "-1", str(64 << 20)) in audited(scene)
            await scene.kill()

            groups.put(batch.inner, "cpu.shares", "77")  # by nobody whom we know
            await scene.begin()
            await scene.until(lambda: batch.values(batch.inner) == DESIRED, "what drifted")
            # beside what the agent before wrote, which is in its file
            drift = [("cpu.shares", "77", "512")]
            await scene.until(lambda: audited(scene)[2 * len(FILES) :] == drift, "the drift")
            refused = await scene.command("restore")
            assert (refused.returncode, batch.values(batch.inner)) == (3, DESIRED)
            assert "an agent holds the lock" in refused.stderr
            planned = await scene.command("restore", "--dry-run")
            assert len(planned.stdout.splitlines()) == 2 * len(FILES)
            assert await scene.end() == 0
            assert batch.values(batch.inner) == DESIRED

            command = await scene.command("restore")
            print(command.stdout)  # noqa: T201 - what a person would see
            assert command.returncode == 0
            assert batch.values(batch.group) == FIRST
            assert batch.values(batch.inner) == ["77", *FIRST[1:]]  # the last word of others
            again = await scene.command("restore")
            assert again.stdout == "nothing was recorded\n"

    play(act)


def test_a_new_pod_and_a_new_node_slo_are_in_the_files_without_waiting_for_the_period() -> None:
    async def act(scene: Scene) -> None:
        scene.tell(ENFORCE__INTERVAL_S="60")
        with real_groups() as groups:
            batch = BatchPod(scene, groups)
            await scene.begin()
            await batch.start()
            await scene.until(lambda: batch.values(batch.inner) == DESIRED, "the container's files")
            scene.api.put(LIMITED_BY_CLASS)
            unlimited = [DESIRED[0], "-1", DESIRED[2]]
            await scene.until(lambda: batch.values(batch.inner) == unlimited, "the NodeSLO")

    play(act)


def test_plan_mode_says_what_it_would_write_and_writes_nothing() -> None:
    async def act(scene: Scene) -> None:
        scene.tell(ENFORCE__MODE="plan")
        with real_groups() as groups:
            batch = BatchPod(scene, groups)
            await scene.begin()
            container = await batch.start()
            await scene.until(lambda: len(audited(scene)) >= len(FILES), "what would be changed")
            rows = json.loads(await scene.get("api/v1/audit"))["audit"]
            assert all(row["planned"] for row in rows)
            assert batch.values(batch.group) == batch.values(batch.inner) == FIRST
            assert container.spec.cpu["shares"] == 1024
            assert container.spec.memory_bytes is None
            assert (await scene.command("restore", "--dry-run")).stdout == "nothing was recorded\n"

    play(act)
