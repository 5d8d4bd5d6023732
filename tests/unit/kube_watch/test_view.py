from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from agent.errors import ParseError
from agent.kube.watch.cache import DecodedObject, WatchCache


def make(body: str) -> str:
    if body == "bad":
        raise ParseError("body", body)
    return body


def decoded(
    key: str, version: str, body: str | None = "good", uid: str = "u"
) -> DecodedObject[str]:
    return DecodedObject(key=key, uid=uid, version=version, body=body, error="unreadable")


def filled(view: WatchCache[str, str]) -> WatchCache[str, str]:
    view.stage([decoded("a", "1"), decoded("b", "2")])
    assert view.replace()
    return view


@pytest.fixture
def view() -> WatchCache[str, str]:
    return filled(WatchCache("things", make))


def small_view() -> WatchCache[str, str]:
    return filled(WatchCache("things", make, max_objects=3))


class Changes:
    """What a view reports."""

    def __init__(self) -> None:
        self.reported: list[object] = []

    def replace_objects(self, values: Mapping[str, str]) -> None:
        self.reported.append(dict(values))

    def set_object(self, key: str, value: str) -> None:
        self.reported.append((key, value))

    def remove_object(self, key: str, value: str) -> None:
        self.reported.append((key, value, "removed"))


def test_a_large_view_reports_each_change_and_is_edited() -> None:
    changes = Changes()
    view = filled(WatchCache("things", make, changes=changes))
    mapping = view.mapping
    view.update(decoded("c", "3", body="new"))
    view.update(decoded("c", "4", body="new"))
    view.update(decoded("a", "5", body="bad"))
    view.remove(decoded("b", "6"))
    assert changes.reported == [{"a": "good", "b": "good"}, ("c", "new"), ("b", "good", "removed")]
    assert view.mapping is mapping
    assert dict(mapping) == {"a": "good", "c": "new"}
    view.stage([decoded("z", "9")])
    view.replace()
    assert changes.reported[-1] == {"z": "good"}


def test_a_view_in_use_never_changes(view: WatchCache[str, str]) -> None:
    mapping = view.mapping
    view.update(decoded("c", "3"))
    view.remove(decoded("a", "4"))
    view.stage([decoded("z", "5")])
    view.replace()
    assert dict(mapping) == {"a": "good", "b": "good"}
    with pytest.raises(TypeError):
        mapping["x"] = "y"  # type: ignore[index]  # that it cannot be done is the point


def test_the_end_of_an_object_is_not_that_of_its_namesake(view: WatchCache[str, str]) -> None:
    assert not view.remove(decoded("a", "9", uid="of another"))
    assert not view.remove(decoded("never seen", "9"))
    assert view.remove(decoded("a", "9"))
    assert dict(view.mapping) == {"b": "good"}


def test_another_object_of_the_same_name_and_version_is_read(view: WatchCache[str, str]) -> None:
    assert view.update(decoded("a", "1", body="anew", uid="v"))
    assert view.mapping["a"] == "anew"


def test_a_new_version_with_the_same_value_is_no_change_but_is_known(
    view: WatchCache[str, str],
) -> None:
    before = view.mapping
    assert not view.update(decoded("a", "7"))
    assert view.mapping is before
    assert not view.update(decoded("a", "7", body="never read"))


def test_what_replaced_a_good_object_and_cannot_be_read_is_not_it(
    view: WatchCache[str, str],
) -> None:
    view.stage([decoded("a", "9", body="bad"), decoded("b", "9", body="bad", uid="v")])
    view.replace()
    assert dict(view.mapping) == {"a": "good"}
    assert view.malformed == 2


def test_a_malformed_object_is_logged_once_until_it_was_valid_again(
    view: WatchCache[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for version, body in (("3", "bad"), ("4", "bad"), ("5", "good"), ("6", "bad")):
        view.update(decoded("a", version, body=body))
    assert len(caplog.records) == 2
    assert view.malformed == 3


def test_each_new_malformed_object_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    view = small_view()
    for i in range(10):
        view.update(decoded(f"odd-{i}", str(2 * i), body="bad"))
        view.remove(decoded(f"odd-{i}", str(2 * i + 1)))
    assert len(caplog.records) == 10


def test_objects_without_a_version_are_read_each_time(view: WatchCache[str, str]) -> None:
    view.update(decoded("a", "", body="one"))
    view.update(decoded("a", "", body="two"))
    assert view.mapping["a"] == "two"


def test_a_view_does_not_grow_without_bound() -> None:
    view = small_view()
    for i in range(10):
        view.update(decoded(f"new-{i}", "9"))
    assert len(view.mapping) == 3
    assert view.update(decoded("a", "10", body="changed"))
    assert view.malformed == 9
