"""Answers of several hooks as one: the short way for one answer is the long one's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.containers.dispatch import merge_answers
from agent.snapshot.container import NO_ADJUSTMENT, Adjustment, CoreSchedulingGroup, LinuxResources
from agent.snapshot.edits import NO_EDITS, ContainerEdits

numbers = st.none() | st.integers(-1, 3)
texts = st.none() | st.sampled_from(("", "0-1", "a"))
resources = st.builds(
    LinuxResources,
    shares=numbers,
    quota_us=numbers,
    period_us=numbers,
    cpus=texts,
    memory_bytes=numbers,
)
answers = st.builds(
    Adjustment,
    edits=st.sampled_from(
        (NO_EDITS, ContainerEdits(cdi=("a/b=c",)), ContainerEdits(env=(("a", ""),)))
    ),
    resources=resources,
    rdt_class=texts,
    oom_score_adj=numbers,
    bvt_warp_ns=numbers,
    core_group=st.none() | st.just(CoreSchedulingGroup(enabled=True)),
)


@given(answers, st.sampled_from(("devices", "cpuset", "other")), st.booleans())
def test_one_answer_is_what_it_would_be_beside_one_that_says_nothing(
    answer: Adjustment, name: str, first: bool
) -> None:
    alone, beside = (name, answer), ("silent", NO_ADJUSTMENT)
    both = (alone, beside) if first else (beside, alone)
    assert merge_answers((alone,)) == merge_answers(both)


def test_of_no_answer_nothing_comes() -> None:
    assert merge_answers(()) == (NO_ADJUSTMENT, ())
