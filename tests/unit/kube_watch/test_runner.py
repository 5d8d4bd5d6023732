from __future__ import annotations

from collections.abc import Mapping

import pytest

from agent.kube.errors import (
    ApiError,
    BadResponse,
    Expired,
    Forbidden,
    NotFound,
    ServerError,
    StatusCause,
    Throttled,
    Unreachable,
)
from agent.kube.watch.machine import DOUBT_S, MAX_REFUSED_ANSWERS
from agent.snapshot.cluster import WatchPhase
from agent.snapshot.pod import PodView
from tests.unit.kube_watch.script import Followed, Moment, bookmark, line, page, pod, status

CUT = Unreachable("GET /api/v1/pods", "the stream broke")
EXPIRY = Expired("GET /api/v1/pods", "too old", code=410, reason="Expired")
AHEAD = ServerError(
    "GET /api/v1/pods",
    "Timeout: Too large resource version: 70, current: 9",
    code=504,
    causes=(StatusCause("", "Too large resource version", "ResourceVersionTooLarge"),),
)
QUIET: list[Moment] = [600.0]  # ends at the time that it was asked for, without a line
QUIET_STREAMS = round(DOUBT_S / 600.0 + 0.5)


def test_the_first_list_takes_any_version_and_the_watch_begins_at_the_lists() -> None:
    followed = Followed().listing(page(7, pod("a", 3))).streaming([]).run()
    first, second, *_ = followed.api.queries()
    assert first == {"fieldSelector": "spec.nodeName=n", "limit": "500", "resourceVersion": "0"}
    assert second == {
        "fieldSelector": "spec.nodeName=n",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "600",
    }
    assert followed.names == ["d/a"]
    assert len(followed.views) == 1


def test_an_empty_list_is_a_change_too() -> None:
    followed = Followed().listing(page(7)).run()
    assert followed.views == [{}]
    assert followed.watch.state.synced


def test_pages_are_requested_by_their_token_alone_and_shown_together() -> None:
    followed = Followed().listing(page(7, pod("a", 3), token="t1"), page(7, pod("b", 4))).run()
    assert followed.api.queries()[1] == {
        "fieldSelector": "spec.nodeName=n",
        "limit": "500",
        "continue": "t1",
    }
    assert [sorted(view) for view in followed.views] == [["d/a", "d/b"]]
    assert followed.waits == []


def test_events_change_the_view_one_by_one() -> None:
    events = [
        line("ADDED", pod("b", 8)),
        line("MODIFIED", pod("a", 9, status={"phase": "Running"})),
        line("DELETED", pod("b", 10)),
    ]
    followed = Followed().listing(page(7, pod("a", 3))).streaming([*events], []).run()
    assert [sorted(view) for view in followed.views] == [
        ["d/a"],
        ["d/a", "d/b"],
        ["d/a", "d/b"],
        ["d/a"],
    ]
    assert followed.watch.view["d/a"].phase == "Running"
    assert followed.api.queries()[2]["resourceVersion"] == "10"
    assert followed.watch.state.events == 3


def test_an_event_that_brings_nothing_new_is_no_change() -> None:
    again = line("MODIFIED", pod("a", 8))
    stream = [again, again, again, line("DELETED", pod("x", 9))]
    followed = Followed().listing(page(7, pod("a", 3))).streaming([*stream]).run()
    assert len(followed.views) == 2


def test_a_bookmark_is_no_data_but_moves_the_version_and_the_contact() -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    followed.streaming([60.0, bookmark(50), 5.0, CUT]).run()
    assert followed.api.queries()[2]["resourceVersion"] == "50"
    assert len(followed.views) == 1
    assert followed.watch.state.bookmarks == 1
    contact_s = followed.watch.state.last_contact_s
    assert contact_s == 1060.0


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param([CUT], id="reset"),
        pytest.param([120.0, CUT], id="silent"),
        pytest.param([], id="ended"),
        pytest.param([b'{"type":"ADDED","obj'], id="truncated line"),
        pytest.param([b"[]"], id="no event"),
        pytest.param([status(500, "InternalError")], id="error in the stream"),
        pytest.param(ServerError("GET", "busy", code=503), id="refused with 503"),
        pytest.param(ApiError("GET", "what", code=418), id="a status nobody knows"),
    ],
)
def test_a_stream_that_breaks_is_taken_up_where_it_was(broken: object) -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    followed.streaming([line("ADDED", pod("b", 8))], broken, []).run()  # type: ignore[arg-type]  # of the table
    assert [query["resourceVersion"] for query in followed.api.queries()[1:4]] == ["7", "8", "8"]
    assert followed.names == ["d/a", "d/b"]
    assert all(wait_s >= 0.08 for wait_s in followed.waits)


@pytest.mark.parametrize("failure", [EXPIRY, [status(410, "Expired")], [status(410, "Gone")]])
def test_410_at_the_start_or_in_the_stream_lists_anew_nothing_older(failure: object) -> None:
    followed = Followed().listing(page(7, pod("a", 3), pod("b", 4)), page(90, pod("b", 4)))
    followed.streaming(failure).run()  # type: ignore[arg-type]  # of the table
    # without a limit: a server reads pages from etcd, the pods of all nodes
    assert followed.api.queries()[2] == {
        "fieldSelector": "spec.nodeName=n",
        "resourceVersion": "7",
    }
    assert followed.names == ["d/b"]
    assert followed.waits[0] >= 1.0


def test_410_on_a_page_lists_anew_from_the_first_one() -> None:
    followed = Followed().listing(page(7, pod("a", 3), token="t"), EXPIRY, page(9, pod("b", 8)))
    followed.run()
    assert [sorted(view) for view in followed.views] == [["d/b"]]
    assert followed.api.queries()[2] == {"fieldSelector": "spec.nodeName=n", "limit": "500"}


@pytest.mark.parametrize("refused", [EXPIRY, AHEAD])
def test_a_list_whose_version_does_not_help_is_followed_by_the_most_recent(
    refused: ApiError,
) -> None:
    followed = Followed().listing(page(70, pod("a", 60)), refused, page(9, pod("b", 8)))
    followed.streaming(EXPIRY, EXPIRY).run()
    assert followed.names == ["d/b"]
    versions = [query.get("resourceVersion") for query in followed.api.queries()]
    assert versions == ["0", "70", "70", None, "9", "9"]
    assert "watch" not in followed.api.queries()[-1]  # from the cache again


@pytest.mark.parametrize("code", [403, 404, 503])
def test_a_list_anew_is_never_older_whatever_came_between(code: int) -> None:
    kinds: dict[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 503: ServerError}
    followed = Followed().listing(page(70, pod("a", 60)))
    followed.listing(*[kinds[code]("GET", "no", code=code)] * 3, page(71, pod("a", 60)))
    followed.streaming(EXPIRY).run()
    versions = [query["resourceVersion"] for query in followed.api.queries()]
    assert versions == ["0", *["70"] * 5, "71"]


def test_a_watch_goes_on_at_its_version_after_a_long_overload() -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    busy = [Throttled("GET", "no", code=429)] * 2 * MAX_REFUSED_ANSWERS
    followed.streaming(*busy, [line("ADDED", pod("b", 8))]).run()
    assert followed.names == ["d/a", "d/b"]
    assert followed.watch.state.lists == 1


def test_what_no_single_answer_can_hold_is_read_in_pages_in_the_end() -> None:
    too_long = BadResponse("GET", "an answer of more than 16777216 bytes")
    followed = Followed().listing(*[too_long] * MAX_REFUSED_ANSWERS, page(7, pod("a", 3)))
    queries = followed.run().api.queries()
    assert [query["resourceVersion"] for query in queries[:MAX_REFUSED_ANSWERS]] == [
        "0"
    ] * MAX_REFUSED_ANSWERS
    assert queries[MAX_REFUSED_ANSWERS] == {"fieldSelector": "spec.nodeName=n", "limit": "500"}


def test_a_server_that_was_set_back_and_waits_in_silence_is_listed_anew() -> None:
    followed = Followed().listing(page(70, pod("a", 60)), AHEAD, page(9, pod("b", 8)))
    followed.streaming([60.0, CUT], *[QUIET] * QUIET_STREAMS).run()
    assert followed.names == ["d/b"]
    assert followed.watch.state.watches == 1 + QUIET_STREAMS


def test_quiet_streams_that_end_at_their_time_are_healthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    followed.streaming(*[QUIET] * 20 * QUIET_STREAMS).run()
    state = followed.watch.state
    assert (state.lists, state.watches, state.errors) == (1, 20 * QUIET_STREAMS, 0)
    assert state.last_error == ""
    assert state.last_contact_s == followed.clock.mono_s - followed.waits[-1]
    assert not caplog.records


def test_a_stream_that_is_quiet_far_beyond_its_time_is_opened_anew() -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    followed.streaming([700.0, CUT], [line("ADDED", pod("b", 8))]).run()
    assert followed.names == ["d/a", "d/b"]
    assert followed.watch.state.lists == 1


def test_an_open_stream_confirms_the_view_at_every_moment() -> None:
    contacts: list[float | None] = []
    followed = Followed(on_change=lambda _: contacts.append(followed.watch.state.contact_s(1e9)))
    followed.listing(page(7)).streaming([300.0, line("ADDED", pod("b", 8))], CUT).run()
    assert contacts == [1000.0, 1e9]  # of the list; of an open stream
    assert followed.watch.state.contact_s(1e9) == 1300.0


def test_streams_with_no_more_than_bookmarks_are_never_listed_anew() -> None:
    followed = Followed().listing(page(7, pod("a", 3)))
    spoken: list[Moment] = [120.0, bookmark(7), 100.0, CUT]
    followed.streaming(*[spoken] * 40).run()
    assert followed.watch.state.lists == 1
    assert followed.watch.state.watches == 40


def test_a_list_anew_shows_the_old_view_until_it_is_complete() -> None:
    followed = Followed().listing(
        page(7, pod("a", 3), pod("b", 4)),
        page(90, pod("a", 3), token="t"),
        CUT,
        page(90, pod("c", 80)),
    )
    first: list[object] = []
    followed.streaming(EXPIRY).run()
    assert [sorted(view) for view in followed.views] == [["d/a", "d/b"], ["d/a", "d/c"]]
    first = [view["d/a"] for view in followed.views]
    assert first[0] is first[1]  # what is unchanged is not even read again
    assert followed.api.queries()[4]["continue"] == "t"
    assert (followed.watch.state.lists, followed.watch.state.relists) == (2, 1)


def test_a_new_list_with_the_same_objects_is_no_change() -> None:
    followed = Followed().listing(page(7, pod("a", 3)), page(90, pod("a", 3)))
    followed.streaming(EXPIRY, []).run()
    assert len(followed.views) == 1


@pytest.mark.parametrize(
    "busy",
    [
        ServerError("GET", "busy", code=503, retry_after_s=20.0),
        [status(429, "TooManyRequests", retryAfterSeconds=20)],
    ],
)
def test_retry_after_is_waited_for(busy: object) -> None:
    followed = Followed(uniform=min).listing(page(7))
    followed.streaming(busy, []).run()  # type: ignore[arg-type]  # of the table
    assert followed.waits[0] >= 20.0


def test_events_with_older_versions_cause_a_new_list() -> None:
    followed = Followed().listing(page(7, pod("a", 3)), page(9, pod("a", 9)))
    followed.streaming([line("MODIFIED", pod("a", 9)), line("MODIFIED", pod("a", 8))]).run()
    assert followed.watch.state.relists == 1
    assert followed.watch.view["d/a"].resource_version == "9"


def test_a_crd_that_appears_later_is_found() -> None:
    absent = NotFound("GET", "no such resource", code=404)
    followed = Followed().listing(absent, absent).run()
    assert followed.watch.state.absent_s == 1000.0 + followed.waits[0]
    followed.listing(page(7, pod("a", 3))).run()
    assert followed.names == ["d/a"]
    assert followed.watch.state.absent_s is None
    assert all(3.0 <= wait_s <= 300.0 for wait_s in followed.waits[:2])
    assert followed.watch.state.last_error == ""


def test_a_forbidden_watch_is_logged_once_and_retried_slowly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbidden = Forbidden("GET", "may not list pods", code=403, reason="Forbidden")
    followed = Followed().listing(*[forbidden] * 20).run()
    assert followed.watch.state.errors == 20
    assert sum(followed.waits) > 3600
    assert [record.getMessage() for record in caplog.records] == ["watch_failed"]
    assert "may not list pods" in followed.watch.state.last_error


def test_a_watch_that_is_forbidden_where_lists_are_not_still_has_a_view() -> None:
    forbidden = Forbidden("GET", "may not watch pods", code=403)
    followed = Followed().listing(page(7, pod("a", 3)), page(9, pod("b", 8)))
    followed.streaming(forbidden, forbidden).run()
    assert followed.names == ["d/b"]


def test_what_is_absent_keeps_what_was_known() -> None:
    absent = NotFound("GET", "no such resource", code=404)
    followed = Followed().listing(page(7, pod("a", 3))).streaming(absent)
    followed.listing(absent).run()
    assert followed.names == ["d/a"]
    assert (
        followed.watch.state.phase is WatchPhase.LISTING
    )  # the third try, which the script left out


def test_after_an_exception_of_the_listener_the_whole_view_is_passed_again() -> None:
    views: list[list[str]] = []

    def take(view: Mapping[str, PodView]) -> None:
        if "d/b" in view and "d/c" not in view:
            raise LookupError("a bug")
        views.append(sorted(view))

    followed = Followed(on_change=take).listing(page(7, pod("a", 3)))
    followed.streaming([line("ADDED", pod("b", 8))])
    followed.streaming([bookmark(9)], [line("ADDED", pod("c", 10))], [bookmark(11)])
    for _ in range(2):
        with pytest.raises(LookupError):
            followed.run()
    followed.run()
    assert views == [["d/a"], ["d/a", "d/b", "d/c"]]
    assert [query.get("resourceVersion") for query in followed.api.queries()] == [
        *("0", "7", "8", "9"),
        *("10", "11"),
    ]
