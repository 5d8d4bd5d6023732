"""The runtime, the agent, or both end badly while pods live; the agent is late, or away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containerd.agent_side.process import Agent, begun
from tests.containerd.agent_side.scene import entry, grant
from tests.containerd.runtime.inside import look, opening, tell
from tests.containerd.runtime.pods import Pod
from tests.containerd.runtime.running import Containerd

CARD = grant(entry(0, "GPU-0"))


@pytest.fixture
def agent(runtime: Containerd) -> Iterator[Agent]:
    with begun(runtime) as started:
        yield started


def has_card(runtime: Containerd, container: str) -> bool:
    """Say whether a container has the card, and may open it."""
    return opening(runtime.cri, container, "/dev/nvidia0") == "allowed"


def test_the_runtime_is_killed_and_begun_again_while_the_agent_lives(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    before = pod.start("before")
    assert agent.proof(before).verdict == "verified"
    runtime.kill()
    lost = agent.until(lambda now: now.state == "waiting")
    runtime.start()
    entries = agent.until(lambda now: now.state == "synchronized" and now.registrations == 2)
    tell("containerd killed", lost.reason, f"registrations {entries.registrations}")
    after = pod.start("after")
    assert has_card(runtime, before)
    assert has_card(runtime, after)
    assert entries.containers[before] == "running"
    assert agent.proof(after).verdict == "verified"


def test_the_agent_is_killed_and_begun_again_while_containers_live(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    before = pod.start("before")
    agent.kill()
    between = pod.start("between")
    agent.begin()
    after = pod.start("after")
    assert [agent.proof(one).verdict for one in (before, after)] == ["verified"] * 2
    lacking = agent.proof(between)
    tell("agent killed; a container made meanwhile", lacking.verdict, lacking.details)
    assert [has_card(runtime, one) for one in (before, after)] == [True, True]
    assert opening(runtime.cri, between, "/dev/nvidia0") == "absent"
    assert lacking.verdict == "missing"
    assert "/dev/nvidia0 is not there" in lacking.details


def test_runtime_and_agent_are_both_killed_and_nothing_is_lost(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    before = pod.start("before")
    runtime.kill()
    agent.kill()
    runtime.start()
    agent.begin()
    assert agent.proof(before).verdict == "verified"
    assert has_card(runtime, before)
    assert has_card(runtime, pod.start("after"))


def test_a_container_made_without_the_agent_is_found_missing_its_card_when_it_comes(
    runtime: Containerd,
) -> None:
    pod = Pod(runtime, CARD).run()
    container = pod.start()
    with begun(runtime) as agent:
        proof = agent.proof(container)
        tell("made while the agent was away", proof.verdict, proof.details)
        assert proof.verdict == "missing"
        runtime.cri.stop(container)
        runtime.cri.remove(container)
        again = pod.start(attempt=1)
        assert agent.proof(again).verdict == "verified"


def test_a_frozen_agent_is_dropped_and_the_pod_starts_and_it_says_so_when_it_is_back(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    agent.freeze()
    container = pod.start()  # the runtime waits for a while and goes on
    agent.thaw()
    entries = agent.until(lambda now: now.registrations == 2 and now.state == "synchronized")
    proof = agent.proof(container)
    tell("frozen agent", f"ends {entries.ends}", f"missed {entries.missed}", proof.verdict)
    assert opening(runtime.cri, container, "/dev/nvidia0") == "absent"
    assert proof.verdict == "missing"
    assert has_card(runtime, pod.start("after"))


def test_an_agent_that_ends_in_order_leaves_the_runtime_and_its_pods_as_they_are(
    runtime: Containerd, agent: Agent
) -> None:
    pod = Pod(runtime, CARD).run()
    container = pod.start()
    agent.stop()
    assert has_card(runtime, container)
    assert "/dev/nvidia0" not in look(runtime.cri, pod.start("after")).nodes


def test_a_sandbox_that_ended_while_the_agent_was_away_holds_nothing(
    runtime: Containerd, agent: Agent
) -> None:
    """The runtime lists it until the kubelet removes it, beside the pod's new one."""
    pod = Pod(runtime, CARD).run()
    stopped = [pod.id]
    pod.start("before")
    agent.kill()
    pod.run_again()
    agent.begin()
    entries = agent.until(lambda now: now.state == "synchronized")
    assert entries.stopped == stopped
    after = pod.start("after")
    assert agent.proof(after).verdict == "verified"
    stopped.append(pod.id)
    pod.run_again()
    agent.until(lambda now: sorted(now.stopped) == sorted(stopped))
    runtime.kill()
    runtime.start()
    entries = agent.until(lambda now: now.state == "synchronized" and now.registrations == 2)
    assert sorted(entries.stopped) == sorted(stopped)


def test_a_pod_that_ended_after_a_restart_of_the_runtime_holds_nothing(
    runtime: Containerd, agent: Agent
) -> None:
    """The runtime does not tell of the end of sandboxes that were there before its restart."""
    ended = Pod(runtime, CARD, uid="00000000-0000-4000-8000-000000000000").run()
    ended.start()
    runtime.kill()
    runtime.start()
    agent.until(lambda now: now.state == "synchronized" and now.registrations == 2)
    runtime.cri.remove_pod(ended.id)
    agent.until(lambda now: not now.containers)
    assert has_card(runtime, Pod(runtime, CARD).run().start("after"))


def test_containers_that_exit_at_once_do_not_stay_with_the_agent(
    runtime: Containerd, agent: Agent
) -> None:
    """The runtime often tells of their end before it tells of their start."""
    pod = Pod(runtime, CARD).run()
    ended = [pod.start(f"init-{number}", command=["/bin/true"]) for number in range(6)]
    running = pod.start("main")
    agent.until(lambda now: now.containers == {running: "running"})
    for container in ended:
        runtime.cri.remove(container)
    assert agent.proof(running).verdict == "verified"
