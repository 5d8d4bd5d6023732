from __future__ import annotations

import json

import pytest

from tests.unit.kube_watch.script import Followed, line, page, pod, status


def test_a_malformed_object_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    odd = [None, 7, {}, {"metadata": 7}, pod("x", 4, spec={"priority": "high"}), pod("A B", 5)]
    stream = [line("ADDED", item) for item in odd] + [line("MODIFIED", pod("a", 9))]
    followed = Followed().listing(page(3, *odd, pod("a", 3))).streaming([*stream]).run()
    assert followed.names == ["d/a"]
    assert followed.watch.view["d/a"].resource_version == "9"
    assert followed.watch.state.malformed == 2 * len(odd)
    names = {record.__dict__["object"] for record in caplog.records}
    assert names == {"", "d/x", "d/A B"}
    assert len(caplog.records) == 3


def test_an_object_that_cannot_be_read_any_more_keeps_its_last_good_value() -> None:
    broken = pod("a", 9, spec={"priority": "high"})
    followed = Followed().listing(page(7, pod("a", 3)), page(10, broken))
    followed.streaming([line("MODIFIED", broken), status(410, "Expired")], []).run()
    assert followed.watch.view["d/a"].resource_version == "3"
    assert followed.watch.state.malformed == 2


def test_an_object_of_a_megabyte_and_a_half_is_read() -> None:
    big = pod("big", 8)
    assert isinstance(big["metadata"], dict)
    big["metadata"]["managedFields"] = [{"fieldsV1": {f"f:{i}": "x" * 100}} for i in range(13_000)]
    assert len(json.dumps(big)) > 1_500_000
    followed = Followed().listing(page(7, big)).streaming([line("MODIFIED", big)]).run()
    assert followed.names == ["d/big"]


@pytest.mark.parametrize("text", ["\\ud800", "\\\\\\udC00", "\\u0000", "é"])
def test_odd_letters_cost_their_pod_at_most(text: str) -> None:
    odd = json.dumps(pod("x", 4, status={"phase": "?"})).replace("?", text)
    data = page(7, pod("a", 3)).replace(b'"items": [', f'"items": [{odd}, '.encode())
    assert Followed().listing(data).run().names == ["d/a", "d/x"]
    event = b'{"type": "ADDED", "object": ' + odd.encode() + b"}"
    followed = Followed().listing(page(3)).streaming([event]).run()
    assert followed.names == ["d/x"]
