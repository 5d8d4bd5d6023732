"""The kubelet's settings and its checkpoint: joined, asked seldom, kept when they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest

from agent.kube.errors import Forbidden
from agent.kubelet import poller as module
from agent.kubelet.poller import NO_CONFIGZ, join_facts
from agent.loop import T
from agent.recording.tree import TreeFiles
from agent.snapshot.cluster import KUBELET_ABSENT, KUBELET_FORBIDDEN, KUBELET_OK, KubeletView
from agent.snapshot.cpu import Cpu, CpuTopology
from agent.wire_formats.kubelet import CpuCheckpoint, KubeletConfig
from tests.patience import PATIENCE_S
from tests.unit.kubelet.scripted import World, in_world

CPUS = CpuTopology(
    cpus=tuple(Cpu(id=n, core=n % 2, socket=0, node=0, l3=0) for n in range(4)),
)
STATIC = KubeletConfig(cpu_manager_policy="static", reserved_milli=1500)
CHECKPOINT = CpuCheckpoint(policy="static", pod_cpus=(("uid", frozenset({1})),))
PATH = "/var/lib/kubelet/cpu_manager_state"
WRITTEN = json.dumps(
    {"policyName": "static", "defaultCpuSet": "0,2-3", "entries": {"uid": {"c": "1"}}}
).encode()


@pytest.mark.parametrize(
    ("config", "checkpoint", "facts"),
    [
        (None, None, None),
        (
            STATIC,
            CHECKPOINT,
            KubeletView(
                cpu_manager_policy="static",
                reserved_cpus=frozenset({0, 2}),
                pod_cpus=CHECKPOINT.pod_cpus,
            ),
        ),
        (
            msgspec.structs.replace(STATIC, reserved_system_cpus=frozenset({3})),
            None,
            KubeletView(cpu_manager_policy="static", reserved_cpus=frozenset({3})),
        ),
        # the checkpoint of an earlier policy gives nothing away
        (
            KubeletConfig(cpu_manager_policy="none", reserved_milli=1000),
            CHECKPOINT,
            KubeletView(cpu_manager_policy="none"),
        ),
        # the settings may not be asked for: the policy is known all the same, what is kept is not
        (None, CHECKPOINT, KubeletView(cpu_manager_policy="static", pod_cpus=CHECKPOINT.pod_cpus)),
        (
            msgspec.structs.replace(STATIC, reserved_milli=None),
            None,
            KubeletView(cpu_manager_policy="static"),
        ),
    ],
)
def test_joined(
    config: KubeletConfig | None, checkpoint: CpuCheckpoint | None, facts: KubeletView | None
) -> None:
    assert join_facts(config, checkpoint, CPUS) == facts


def test_settings_are_read_every_five_minutes() -> None:
    async def test(world: World) -> None:
        assert await world.pass_time(3600) == 360
        assert world.kubelet.asked_settings == 12

    in_world(test)


def test_they_are_joined_anew_only_when_a_source_changed() -> None:
    joined = []

    async def counted(work: Callable[[], T]) -> T:
        joined.append(work)
        return work()

    async def test(world: World) -> None:
        world.source._offload = counted
        await world.pass_time(3600)
        assert len(joined) == 1
        world.kubelet.settings = KubeletConfig(cgroup_driver="cgroupfs")
        await world.pass_time(600)
        assert len(joined) == 2
        assert world.facts[-1].value == KubeletView(cgroup_driver="cgroupfs")

    in_world(test)


def test_a_setting_of_an_unknown_type_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(world: World) -> None:
        world.kubelet.settings = KubeletConfig(mistyped_keys=("cgroupDriver",))
        await world.pass_time(3600)
        assert [record.getMessage() for record in caplog.records] == ["kubelet_config_odd"]

    in_world(test)


def test_a_hanging_checkpoint_blocks_one_thread_and_no_poll_of_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "READ_S", 0.01)
    works: list[Callable[[], object]] = []
    ended = asyncio.Event()

    async def first_hangs(work: Callable[[], T]) -> T:
        works.append(work)
        if len(works) == 1:
            await ended.wait()
        return work()

    async def live() -> None:
        world = World(TreeFiles.from_entries({PATH: WRITTEN}))
        world.source._offload = first_hangs
        world.kubelet.settings = KubeletConfig(cpu_manager_policy="static")
        for _ in range(3):
            await asyncio.wait_for(world.poller.poll(), PATIENCE_S)
        assert len(works) == 2, "one read, and one join of what is known"
        assert "not read within" in world.facts[-1].error
        assert world.pods[-1].error == ""
        ended.set()
        await world.poller.poll()
        assert world.facts[-1].value == KubeletView(
            cpu_manager_policy="static", pod_cpus=(("uid", frozenset({1})),)
        )
        assert world.facts[-1].error == ""

    asyncio.run(live())


def test_refused_settings_affect_only_themselves_and_are_read_ever_more_rarely() -> None:
    async def test(world: World) -> None:
        world.kubelet.settings = Forbidden("configz", "needs get on nodes/configz", code=403)
        await world.pass_time(3600)
        assert 12 <= world.kubelet.asked_settings <= 16
        assert world.facts[-1].value is None
        assert world.facts[-1].taken_s is None
        assert "nodes/configz" in world.facts[-1].error
        assert world.poller.state.config == KUBELET_FORBIDDEN
        assert world.poller.state.pods == KUBELET_OK
        assert world.pods[-1].error == ""
        world.kubelet.settings = KubeletConfig(cgroup_driver="systemd")
        await world.pass_time(300)
        assert world.poller.state.config == KUBELET_OK
        assert world.poller.state.detail == ""

    in_world(test)


def test_known_settings_stay_while_they_cannot_be_read() -> None:
    async def test(world: World) -> None:
        await world.poller.poll()
        world.kubelet.settings = Forbidden("configz", "no", code=403)
        await world.pass_time(3600)
        fact = world.facts[-1]
        assert fact.value == KubeletView(cgroup_driver="systemd")
        assert (fact.age_s(world.clock.monotonic()) or 0) >= 3600
        assert fact.error

    in_world(test)


def test_a_port_without_settings_says_so() -> None:
    async def test(world: World) -> None:
        world.kubelet.settings = None
        await world.poller.poll()
        assert world.facts[-1].error == NO_CONFIGZ
        assert world.poller.state.config == KUBELET_ABSENT

    in_world(test)


def test_the_checkpoint_is_read_at_every_poll_and_a_damaged_one_changes_nothing() -> None:
    tree = {PATH: WRITTEN}
    world = World(TreeFiles.from_entries(tree), CPUS)
    world.kubelet.settings = STATIC

    async def test() -> None:
        await world.poller.poll()
        expected = world.facts[-1].value
        assert expected is not None
        assert expected.pod_cpus == (("uid", frozenset({1})),)
        for damaged in (b"", WRITTEN[:40], b"{}", b"\xff" * 9):
            world.source._files = TreeFiles.from_entries({PATH: damaged})
            await world.poller.poll()
            assert world.facts[-1].value == expected
            assert world.facts[-1].error
        world.source._files = TreeFiles.from_entries({"/var/lib/kubelet/config.yaml": b""})
        await world.poller.poll()
        fact = world.facts[-1].value
        assert fact is not None
        assert fact.pod_cpus == ()
        assert world.facts[-1].error == ""

    asyncio.run(test())


def test_without_settings_the_checkpoint_gives_the_facts_their_time() -> None:
    world = World(TreeFiles.from_entries({PATH: WRITTEN}), CPUS)
    world.kubelet.settings = Forbidden("configz", "no", code=403)

    async def test() -> None:
        await world.poller.poll()
        facts = world.facts[-1]
        assert facts.value is not None
        assert facts.value.cpu_manager_policy == "static"
        assert facts.taken_s == world.clock.monotonic()

    asyncio.run(test())
