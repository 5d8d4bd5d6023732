"""The kubelet's account of devices beside the scheduler's grants, where the two may differ."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tests.fault.deviceplugin.cluster import PATIENT, Cluster, given, in_cluster, pod
from tests.fault.deviceplugin.stage import QUICK
from tests.kubelet.admission import NotAdmitted


@pytest.mark.parametrize("ahead", ["kubelet", "agent"])
def test_the_kubelet_accounts_the_granted_card_whoever_hears_of_the_pod_first(ahead: str) -> None:
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
        assert given(admitted) == [2]
        assert cluster.account(one) == [2]

    in_cluster(test)


def test_a_pod_that_nobody_tells_of_waits_no_longer_than_the_kubelet_may_be_held_up() -> None:
    async def test(cluster: Cluster) -> None:
        with pytest.raises(NotAdmitted, match="PodUnknown"):
            await cluster.admit(pod(1))
        # advice was late and there was none to give: that alone refuses nobody
        assert cluster.plugin.figures()[0].preferred == (("ok", 1),)

    in_cluster(test, replace(QUICK, pod_s=0.1))


def test_a_slow_pod_holds_up_the_next_one_and_its_deletion_cancels_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        slow, next_one = pod(1, 3), pod(2)
        first = asyncio.create_task(cluster.admit(slow))
        await cluster.unanswered()
        second = asyncio.create_task(cluster.admit(next_one))
        # deleted before our watch told of it: the kubelet still waits for the answer
        cluster.create(replace(slow, terminating=True))
        assert given(await first) == [3]
        cluster.create(next_one)
        assert given(await second) != [3]

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
        assert given(await cluster.admit(new)) == [0, 1, 2, 3]

    in_cluster(test)


def test_before_a_refusal_that_is_for_good_the_source_of_pods_is_woken_and_waited_for() -> None:
    """After a start nobody knows that the API server deleted the pod: only a fresh list tells."""

    async def test(cluster: Cluster) -> None:
        old, new = pod(1, 0, 1, 2, 3, count=4), pod(2, 0, 1, 2, 3, count=4)
        await cluster.run(old)
        stale = cluster.pods[old.uid]
        await cluster.kubelet.end(old.uid)
        cluster.pods = {new.uid: new}
        await cluster.restart()
        cluster.list_at_kubelet(stale)
        admission = asyncio.create_task(cluster.admit(new))
        await cluster.kubelet.until(
            lambda: cluster.wakes > 0 or admission.done(), "the source of pods to be woken"
        )
        cluster.list_at_kubelet(new)
        assert given(await admission) == [0, 1, 2, 3]

    in_cluster(test, PATIENT)
