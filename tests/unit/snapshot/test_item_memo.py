from __future__ import annotations

from agent.snapshot.node import ItemMemo
from agent.snapshot.pod import KubeQos, PodView


def pod(uid: str) -> PodView:
    return PodView(uid=uid, qos=KubeQos.BURSTABLE)


def test_only_items_that_the_last_call_did_not_have_are_computed() -> None:
    computed: list[str] = []

    def compute(view: PodView) -> str:
        computed.append(view.uid)
        return view.uid.upper()

    memo = ItemMemo(compute)
    a, b, c = pod("a"), pod("b"), pod("c")
    assert memo.map([a, b]) == ["A", "B"]
    assert memo.map([b, c, a]) == ["B", "C", "A"]
    assert computed == ["a", "b", "c"]
    assert memo.map([b]) == ["B"]
    assert memo.map([a]) == ["A"]
    assert computed == ["a", "b", "c", "a"]


def test_equal_items_are_not_the_same_item() -> None:
    memo = ItemMemo(id)
    first, other = pod("a"), pod("a")
    assert memo.map([first, other]) == [id(first), id(other)]


def test_a_result_that_is_false_is_kept_as_any_other() -> None:
    computed: list[PodView] = []
    memo = ItemMemo[PodView, None](computed.append)
    one = pod("a")
    assert memo.map([one]) == memo.map([one]) == [None]
    assert computed == [one]
