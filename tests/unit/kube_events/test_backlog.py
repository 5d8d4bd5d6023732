"""Which events are told, when, and what is given up when there are too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.kube import event_backlog as module
from agent.kube.event_backlog import EventBacklog, PendingEvent
from agent.kube.flow_control import MAX_SUBJECTS, SubjectBuckets, TokenBucket
from agent.snapshot.pod import PodRef
from agent.wire_formats.event import Event


def event(
    message: str = "m",
    *,
    at_s: float = 0.0,
    pod: str = "",
    reason: str = "R",
    device: str = "",
    repeat_key: str = "",
) -> Event:
    ref = PodRef(namespace="n", name=pod) if pod else None
    return Event(
        type="Normal",
        reason=reason,
        message=message,
        object_kind="Pod" if pod else "Node",
        at_s=at_s,
        pod=ref,
        device=device,
        repeat_key=repeat_key,
    )


def send_all(backlog: EventBacklog, now_s: float) -> list[PendingEvent]:
    """Tell what is due, as long as anything is."""
    items = []
    while (item := backlog.next(now_s)) is not None:
        backlog.mark_sent(item, now_s)
        items.append(item)
    return items


def test_an_event_is_sent_at_once_and_its_repeats_together_a_minute_later() -> None:
    backlog = EventBacklog()
    backlog.offer(event(at_s=5.0), 0.0)
    (first,) = send_all(backlog, 0.0)
    assert (first.count, first.sent_count, first.first_s) == (1, 0, 5.0)
    for second in range(1, 50):
        backlog.offer(event(at_s=5.0 + second), float(second))
    assert send_all(backlog, 59.9) == []
    assert backlog.wait_s(50.0) == 10.0
    (repeats,) = send_all(backlog, 60.0)
    assert (repeats.count, repeats.sent_count, repeats.first_s, repeats.last_s) == (
        50,
        1,
        5.0,
        54.0,
    )
    assert backlog.wait_s(60.0) is None
    assert (backlog.counts.created, backlog.counts.repeated) == (1, 1)


def test_events_are_sent_in_the_order_of_their_arrival() -> None:
    backlog = EventBacklog()
    for number in range(20):
        backlog.offer(event(str(number)), 0.0)
    assert [item.event.message for item in send_all(backlog, 0.0)] == [str(n) for n in range(20)]


def test_events_of_two_pods_with_one_message_are_two() -> None:
    backlog = EventBacklog()
    backlog.offer(event(pod="a"), 0.0)
    backlog.offer(event(pod="b"), 0.0)
    assert len(send_all(backlog, 0.0)) == 2


def test_25_events_of_one_subject_and_reason_are_sent_at_once_then_one_in_five_minutes() -> None:
    backlog = EventBacklog()
    for number in range(30):
        backlog.offer(event(str(number)), 0.0)
        backlog.offer(event(str(number), reason="Other"), 0.0)
    items = send_all(backlog, 0.0)
    assert len(items) == 50
    assert backlog.counts.limited == 10
    rest = send_all(backlog, 10.0)
    assert [(item.event.message, item.count) for item in rest] == [(module.REST_MESSAGE, 5)] * 2
    assert [item.event.reason for item in rest] == ["R", "Other"]
    backlog.offer(event("later"), 299.0)
    assert backlog.counts.limited == 11
    backlog.offer(event("later"), 300.0)
    assert len(send_all(backlog, 300.0)) == 1


def test_repeats_without_a_token_are_kept_and_sent_when_there_is_one() -> None:
    backlog = EventBacklog()
    for number in range(25):
        backlog.offer(event(str(number)), 0.0)
    send_all(backlog, 0.0)
    backlog.offer(event("0"), 1.0)
    assert send_all(backlog, 100.0) == []
    assert backlog.wait_s(100.0) == 200.0
    (items,) = send_all(backlog, 300.0)
    assert items.count == 2


def test_a_node_sends_no_more_than_its_total() -> None:
    backlog = EventBacklog()
    for number in range(80):
        backlog.offer(event(pod=str(number)), 0.0)
    assert len(send_all(backlog, 0.0)) == module.TOTAL_BURST
    assert backlog.wait_s(0.0) == module.TOTAL_REFILL_S
    assert len(send_all(backlog, 5.0)) == 1
    assert len(send_all(backlog, 150.0)) == 29
    assert backlog.counts.dropped == 0


def test_a_hundred_cards_that_fail_at_once_are_reported_within_minutes() -> None:
    backlog = EventBacklog()
    for number in range(100):
        backlog.offer(event(f"card {number}", device=str(number)), 0.0)
    items = [item for seconds in range(0, 255, 5) for item in send_all(backlog, float(seconds))]
    assert len(items) == 100
    assert (backlog.counts.limited, backlog.counts.dropped) == (0, 0)


def test_a_card_that_fails_often_does_not_delay_the_failure_of_another() -> None:
    backlog = EventBacklog()
    for number in range(40):
        backlog.offer(event(f"after {number} s", device="flapping"), 0.0)
    backlog.offer(event("fell off the bus", device="dying"), 1.0)
    assert send_all(backlog, 200.0)[-1].event.device == "dying"


def test_a_text_that_differs_each_time_is_a_repeat_where_the_event_says_so() -> None:
    backlog = EventBacklog()
    for percent in (0, 25, 50):
        backlog.offer(event(f"looks well again: {percent} %", repeat_key="Xid79"), 0.0)
    (item,) = send_all(backlog, 0.0)
    assert (item.event.message, item.count) == ("looks well again: 0 %", 3)


def test_no_number_of_pods_delays_events_of_the_node() -> None:
    backlog = EventBacklog()
    backlog.offer(event("first"), 0.0)
    for number in range(2 * module.MAX_WAITING):
        backlog.offer(event(pod=str(number)), 0.0)
    backlog.offer(event("last"), 0.0)
    items = send_all(backlog, 0.0)
    assert [item.event.message for item in items[:2]] == ["first", "last"]


def test_the_oldest_go_when_too_many_wait_and_are_counted() -> None:
    backlog = EventBacklog()
    more = module.MAX_WAITING + 40
    for number in range(more):
        backlog.offer(event(pod=str(number)), 0.0)
    assert backlog.counts.dropped == 40
    assert backlog.counts.waiting == module.MAX_WAITING
    first = backlog.next(0.0)
    assert first is not None
    assert first.event.pod == PodRef(namespace="n", name="40")


def test_a_deleted_object_becomes_a_new_one_with_the_unsent_repeats() -> None:
    backlog = EventBacklog()
    backlog.offer(event(at_s=0.0), 0.0)
    send_all(backlog, 0.0)
    for _ in range(4):
        backlog.offer(event(at_s=70.0), 70.0)
    item = backlog.next(70.0)
    assert item is not None
    assert (item.count, item.sent_count) == (5, 1)
    backlog.mark_missing(item)
    (again,) = send_all(backlog, 70.0)
    assert (again.count, again.sent_count, again.first_s) == (4, 0, 70.0)


def test_a_series_that_was_silent_for_an_hour_starts_again() -> None:
    backlog = EventBacklog()
    backlog.offer(event(at_s=0.0), 0.0)
    send_all(backlog, 0.0)
    backlog.offer(event(at_s=3600.0), 3600.0)
    (again,) = send_all(backlog, 3600.0)
    assert (again.count, again.sent_count, again.first_s) == (1, 0, 3600.0)


def test_what_was_refused_is_not_tried_again_nor_are_its_repeats() -> None:
    backlog = EventBacklog()
    backlog.offer(event("bad"), 0.0)
    backlog.offer(event("good"), 0.0)
    item = backlog.next(0.0)
    assert item is not None
    backlog.mark_refused(item)
    backlog.offer(event("bad"), 61.0)
    assert [items.event.message for items in send_all(backlog, 61.0)] == ["good"]
    assert backlog.counts.refused == 2


def test_repeats_during_a_send_are_sent_after_it() -> None:
    backlog = EventBacklog()
    backlog.offer(event(), 0.0)
    item = backlog.next(0.0)
    assert item is not None
    backlog.offer(event(at_s=1.0), 1.0)
    backlog.mark_sent(item, 2.0)
    assert backlog.counts.waiting == 1
    (repeat,) = send_all(backlog, 62.0)
    assert (repeat.count, repeat.sent_count) == (2, 1)


def test_an_answer_about_what_was_dropped_meanwhile_changes_nothing() -> None:
    backlog = EventBacklog()
    backlog.offer(event(pod="first"), 0.0)
    item = backlog.next(0.0)
    assert item is not None
    for number in range(module.MAX_WAITING):
        backlog.offer(event(pod=str(number)), 0.0)
    for note in (backlog.mark_missing, backlog.mark_refused):
        note(item)
    backlog.mark_sent(item, 0.0)
    assert backlog.counts.waiting == module.MAX_WAITING


def test_the_one_that_fails_can_be_passed_by() -> None:
    backlog = EventBacklog()
    for number in range(3):
        backlog.offer(event(str(number)), 0.0)
    items = [backlog.next(0.0, skip) for skip in range(4)]
    assert [item.event.message for item in items if item] == ["0", "1", "2", "0"]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 400), st.floats(0, 600), st.sampled_from("ontrf")), max_size=300
    )
)
def test_nothing_grows_without_bound_whatever_the_answers(
    steps: list[tuple[int, float, str]],
) -> None:
    backlog = EventBacklog()
    now_s = 0.0
    for number, forward_s, what in steps:
        now_s += forward_s
        backlog.offer(event(pod=str(number), at_s=now_s), now_s)
        item = backlog.next(now_s)
        if item is None or what == "o":
            continue
        assert item.count > item.sent_count
        if what == "n":
            backlog.mark_missing(item)
        elif what == "f":
            backlog.mark_refused(item)
        else:
            backlog.mark_sent(item, now_s)
        assert len(backlog._series) <= module.MAX_SERIES
        assert len(backlog._waiting) <= module.MAX_WAITING
    waiting = [backlog._series[key] for key in backlog._waiting]
    assert all(entry.count > entry.sent_count for entry in waiting)


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(2, 10.0)
    assert [bucket.take(1e6) for _ in range(3)] == [True, True, False]
    assert bucket.wait_s(1e6 + 4) == 6.0
    assert bucket.take(1e6 + 10)


def test_buckets_of_many_subjects_are_bounded() -> None:
    buckets = SubjectBuckets(1, 10.0)
    for number in range(2 * MAX_SUBJECTS):
        buckets.of((str(number),))
    assert len(buckets._buckets) == MAX_SUBJECTS
