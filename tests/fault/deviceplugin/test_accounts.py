"""The kubelet's account of devices beside the scheduler's grants, where the two may differ."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from agent.snapshot.cluster import KubeletView
from agent.snapshot.part import SnapshotPart
from agent.snapshot.pod import PodView
from tests.fault.deviceplugin.cluster import PATIENT, Cluster, card_numbers, in_cluster, pod
from tests.fault.deviceplugin.stage import QUICK
from tests.kubelet.admission import NotAdmitted
from tests.unit.deviceplugin.made import GPU, card


@pytest.mark.parametrize("ahead", ["kubelet", "agent"])
def test_the_kubelet_accounts_the_granted_card_in_any_order_of_news_about_the_pod(
    ahead: str,
) -> None:
    async def test(cluster: Cluster) -> None:
        one = pod(1, 2)
        if ahead == "agent":
            cluster.create(one)
            admitted = await cluster.admit(one)
        else:
            admission = asyncio.create_task(cluster.admit(one))
            await cluster.unanswered()
            assert cluster.wakes
            cluster.create(one)
            admitted = await admission
        assert card_numbers(admitted) == [2]
        assert cluster.account(one) == [2]

    in_cluster(test)


def test_a_request_for_an_unlisted_pod_waits_no_longer_than_the_limit() -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(NotAdmitted, match="PodUnknown"):
            await cluster.admit(pod(1))
        # advice was late and there was none to give: that alone refuses nobody
        assert cluster.plugin.statistics()[0].preferred == (("ok", 1),)

    in_cluster(test, replace(QUICK, pod_wait_s=0.1))


def test_a_slow_pod_holds_up_the_next_one_and_its_deletion_cancels_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        slow, next_one = pod(1, 3), pod(2)
        first = asyncio.create_task(cluster.admit(slow))
        await cluster.unanswered()
        second = asyncio.create_task(cluster.admit(next_one))
        # deleted before our watch told of it: the kubelet still waits for the answer
        cluster.create(replace(slow, terminating=True))
        assert card_numbers(await first) == [3]
        cluster.create(next_one)
        assert card_numbers(await second) != [3]

    in_cluster(test)


@pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])
def test_a_card_is_free_as_soon_as_the_kubelet_says_so(end: str) -> None:
    """The kubelet's polled list still says that the predecessor runs."""

    async def test(cluster: Cluster) -> None:
        old, new = pod(1, 0, 1, 2, 3, count=4), pod(2, 0, 1, 2, 3, count=4)
        await cluster.run(old)
        cluster.list_at_kubelet(cluster.pods[old.uid])
        cluster.create(new)
        if end == "deleted":
            await cluster.delete(old)
        else:
            await cluster.kubelet.end(old.uid)
            cluster.change(old, phase=end)
        assert card_numbers(await cluster.admit(new)) == [0, 1, 2, 3]

    in_cluster(test)


def test_before_a_refusal_that_is_for_good_the_source_of_pods_is_woken_and_waited_for() -> None:
    """The kubelet knows first that a pod ended: our watch of the API server is behind."""

    async def test(cluster: Cluster) -> None:
        old, new = pod(1, 0, 1, 2, 3, count=4), pod(2, 0, 1, 2, 3, count=4)
        await cluster.run(old)
        cluster.create(new)
        await cluster.kubelet.end(old.uid)
        admission = asyncio.create_task(cluster.admit(new))
        await cluster.kubelet.until(
            lambda: cluster.wakes > 0 or admission.done(), "the source of pods to be woken"
        )
        cluster.list_at_kubelet(replace(old, phase="Succeeded"), new)
        assert card_numbers(await admission) == [0, 1, 2, 3]

    in_cluster(test, PATIENT)


async def with_other_accounts(cluster: Cluster) -> tuple[PodView, int]:
    """Run a pod that was granted card 5, and that the kubelet accounts another card for.

    The kubelet gives its CPUs on memory node 0, so that card 5 is none of those that it offers.
    """
    owner = pod(1, 5)
    assert card_numbers(await cluster.run(owner, aligned=True)) == [5]
    (accounted,) = cluster.account(owner)
    assert accounted < 4
    return owner, accounted


def test_a_pod_that_is_sent_a_granted_card_gets_the_one_that_the_kubelet_holds_for_used() -> None:
    async def test(cluster: Cluster) -> None:
        _, accounted = await with_other_accounts(cluster)
        plain = pod(2, count=7)
        assert card_numbers(await cluster.run(plain)) == [n for n in range(8) if n != 5]
        assert cluster.account(plain) == [n for n in range(8) if n != accounted]
        text = dict(cluster.reported_events)["DeviceExchanged"]
        assert f"{card(accounted)} in place of {card(5)}" in text
        assert "team-a/train-2" in text

    in_cluster(test, cards=8)


@pytest.mark.parametrize("who", ["agent", "kubelet", "both"])
def test_what_was_exchanged_is_known_after_a_restart(who: str) -> None:
    async def test(cluster: Cluster) -> None:
        owner, accounted = await with_other_accounts(cluster)
        plain, next_one, last = pod(2, count=7), pod(3), pod(4)
        await cluster.run(plain)
        if who != "agent":
            before = cluster.kubelet.endpoints[GPU]
            await cluster.kubelet.restart()
            await cluster.kubelet.resource(GPU, not_this=before)
        if who != "kubelet":
            await cluster.restart()
        await cluster.kubelet.until(lambda: cluster.holds(plain), "the kubelet's account")
        await cluster.delete(owner)
        # the kubelet has freed a card that the plain pod has, and only card 5 is free in truth
        assert card_numbers(await cluster.run(next_one)) == [5]
        assert cluster.account(next_one) == [accounted]
        await cluster.delete(plain)
        assert card_numbers(await cluster.run(last)) != [5]

    in_cluster(test, cards=8)


def test_a_container_that_reuses_devices_of_an_init_container_has_the_same_exchanged_ones() -> None:
    async def test(cluster: Cluster) -> None:
        await with_other_accounts(cluster)
        reuses = pod(2, count=6, init=7)
        main = card_numbers(await cluster.run(reuses))
        assert len(main) == 6
        assert 5 not in main
        init, last = (
            allocation
            for allocation in cluster.kubelet.allocations
            if allocation.pod_uid == reuses.uid
        )
        assert set(last.ids) < set(init.ids)

    in_cluster(test, cards=8)


def test_a_card_in_use_that_nothing_can_be_exchanged_for_is_withdrawn_until_its_owner_ends() -> (
    None
):
    async def test(cluster: Cluster) -> None:
        owner = pod(1, 3, count=0)
        cluster.create(owner)
        endpoint = await cluster.kubelet.resource(GPU, healthy=3)
        assert card(3) not in endpoint.healthy()
        plain = pod(2, count=3)
        assert card_numbers(await cluster.run(plain)) == [0, 1, 2]
        assert card(3) in dict(cluster.reported_events)["DeviceWithdrawn"]
        assert "DeviceExchanged" not in dict(cluster.reported_events)
        await cluster.delete(owner)
        await cluster.kubelet.resource(GPU, healthy=4)
        assert card_numbers(await cluster.run(pod(3))) == [3]

    in_cluster(test)


def test_a_granted_pod_that_has_yet_to_be_admitted_finds_as_many_cards_as_it_needs() -> None:
    async def test(cluster: Cluster) -> None:
        owner, waits = pod(1, 3, count=0), pod(2, 0, 1, 2, count=3)
        cluster.create(owner)
        cluster.create(waits)
        endpoint = await cluster.kubelet.resource(GPU, healthy=3)
        assert endpoint.healthy() == {card(0), card(1), card(2)}
        assert card_numbers(await cluster.run(waits)) == [0, 1, 2]

    in_cluster(test)


def test_under_a_policy_that_promises_memory_nodes_a_card_of_another_node_does_not_fit() -> None:
    async def test(cluster: Cluster) -> None:
        await with_other_accounts(cluster)
        cluster.known.update_kubelet_facts(
            SnapshotPart(KubeletView(topology_policy="restricted"), 1.0)
        )
        endpoint = await cluster.kubelet.resource(GPU, healthy=7)
        assert card(5) not in endpoint.healthy()
        # under any other policy it fits: nothing is withdrawn
        cluster.known.update_kubelet_facts(
            SnapshotPart(KubeletView(topology_policy="best-effort"), 1.0)
        )
        await cluster.kubelet.resource(GPU, healthy=8)

    in_cluster(test, cards=8)


def test_a_card_whose_pod_ended_is_listed_again_at_once() -> None:
    """Its successor comes milliseconds later, and would be refused without a question."""

    async def test(cluster: Cluster) -> None:
        owners = [pod(number, number, count=0) for number in range(4)]
        for owner in owners:
            cluster.create(owner)
        await cluster.kubelet.resource(GPU, healthy=0)
        cluster.change(owners[2], phase="Succeeded")
        endpoint = await cluster.kubelet.resource(GPU, healthy=1)
        assert endpoint.healthy() == {card(2)}

    # nothing is looked at again for the time that has gone by
    in_cluster(test, replace(PATIENT, offer_check_s=3600.0))
