"""A hook that is late, wrong or refuses: what the runtime is answered, and in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, HookRequest, HookStage
from agent.wire_formats.device_allocated import ANNOTATION
from tests.fault.nri.attached import ALLOCATED, attached, gets_its_grant, granting
from tests.runtime import Failed

BUDGET_MS = 50


async def stuck(_: HookRequest) -> Adjustment:
    """Never answer."""
    await asyncio.Event().wait()
    return NO_ADJUSTMENT


async def broken(_: HookRequest) -> Adjustment:
    """Have a bug."""
    raise RuntimeError("a bug in a hook")


async def refusing(request: HookRequest) -> Adjustment:
    """Refuse containers."""
    if request.stage is HookStage.CREATE:
        return Adjustment(failed="DeviceUnknown: no such card", reason="DeviceUnknown")
    return NO_ADJUSTMENT


def test_a_hook_over_its_budget_is_answered_empty_and_marked_for_the_reconciler(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder, hook=stuck, budget_ms=BUDGET_MS) as (runtime, agent):
            plugin = await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            container = await runtime.create(pod, "main")
            assert container.missed == []
            assert "GRANTED" not in container.spec.env
            assert plugin.state == "synchronized"
            view = await agent.until(lambda now: container.id in now.missed)
            assert view.missed[container.id]
            assert agent.plugin.statistics.late >= 1
            assert {entry.code for entry in runtime.log} == {0}

    asyncio.run(run())


def test_a_mark_is_removed_when_the_hooks_answered_or_the_container_was_removed(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder, hook=stuck, budget_ms=BUDGET_MS) as (runtime, agent):
            await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            container = await runtime.create(pod, "main")
            await agent.until(lambda now: container.id in now.missed)
            agent.hook = granting
            await runtime.stop_pod(pod)
            await runtime.remove_pod(pod)
            await agent.until(lambda now: not now.missed)
            await gets_its_grant(runtime, "next")

    asyncio.run(run())


def test_hooks_that_are_all_late_cost_no_connection(folder: Path) -> None:
    async def run() -> None:
        limits = {"budget_ms": BUDGET_MS, "request_s": 2.0}
        async with attached(folder, hook=stuck, **limits) as (runtime, agent):  # type: ignore[arg-type]  # the two limits
            plugin = await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            for number in range(10):
                assert (await runtime.create(pod, f"c{number}")).missed == []
            assert plugin.state == "synchronized"
            assert agent.plugin.statistics.registrations == 1
            assert agent.plugin.statistics.in_flight == 0

    asyncio.run(run())


def test_a_budget_above_the_runtimes_own_limit_is_cut_to_it(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, hook=stuck, budget_ms=1500, request_s=0.6) as (runtime, _):
            plugin = await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            assert (await runtime.create(pod, "main")).missed == []
            assert plugin.state == "synchronized"

    asyncio.run(run())


def test_a_bug_in_a_hook_costs_neither_connection_nor_container(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, hook=broken) as (runtime, agent):
            plugin = await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            container = await runtime.create(pod, "main")
            assert container.missed == []
            assert plugin.state == "synchronized"
            await agent.until(lambda now: container.id in now.missed)

    asyncio.run(run())


def test_a_bug_starts_no_container_of_a_pod_that_was_granted_something(folder: Path) -> None:
    async def run() -> None:
        async with attached(folder, hook=broken) as (runtime, agent):
            plugin = await runtime.plugged()
            pod = runtime.pod("p", annotations={ANNOTATION: "{}"})
            await runtime.run_pod(pod)
            with pytest.raises(Failed, match="HookFailed: RuntimeError: see the agent's log"):
                await runtime.create(pod, "main")
            assert plugin.state == "synchronized"
            await agent.until(lambda now: not now.containers)

    asyncio.run(run())


def test_a_refusal_fails_the_container_with_its_reason_and_keeps_the_connection(
    folder: Path,
) -> None:
    async def run() -> None:
        async with attached(folder, hook=refusing) as (runtime, agent):
            plugin = await runtime.plugged()
            pod = runtime.pod("p")
            await runtime.run_pod(pod)
            with pytest.raises(Failed, match="DeviceUnknown: no such card"):
                await runtime.create(pod, "main")
            assert plugin.state == "synchronized"
            await agent.until(lambda now: not now.containers)
            agent.hook = granting
            await gets_its_grant(runtime, "next")

    asyncio.run(run())


def test_a_question_that_must_be_answered_waits_for_no_other(folder: Path) -> None:
    async def held(request: HookRequest) -> Adjustment:
        return await stuck(request) if request.pod.name == "slow" else ALLOCATED

    async def run() -> None:
        async with attached(folder, hook=held, budget_ms=1000) as (runtime, agent):
            plugin = await runtime.plugged()
            slow, quick = runtime.pod("slow"), runtime.pod("quick")
            runtime.lock = asyncio.Semaphore(2)  # type: ignore[assignment]  # two at a time
            waiting = asyncio.ensure_future(runtime.run_pod(slow))
            await runtime.run_pod(quick)
            assert not waiting.done()
            await waiting
            assert plugin.state == "synchronized"
            assert agent.plugin.statistics.late == 1

    asyncio.run(run())
