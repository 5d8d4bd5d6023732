from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.model.grant.edits import ContainerEdits
from agent.model.grant.proof import Verdict
from agent.proof.evidence import Evidence, Limit, MountFound, NodeFound, Origin, Record, Rule
from agent.proof.judge import MAX_DETAILS, judge
from tests.unit.proof.found import (
    CARDS,
    DENIED,
    EDITS,
    LIBRARY,
    MAY,
    MOUNT,
    OTHER,
    RECORD,
    SEEN,
)

SECRET = "hunter2"


def test_a_container_that_has_everything_is_verified_without_a_word() -> None:
    found = judge(EDITS, CARDS, SEEN)
    assert (found.verdict, found.details) == (Verdict.VERIFIED, ())


def without_record(**changes: object) -> Evidence:
    return replace(SEEN, record=None, **changes)


@pytest.mark.parametrize(
    ("evidence", "detail"),
    [
        (replace(SEEN, nodes=()), "/dev/nvidia0 is not there"),
        (
            replace(SEEN, nodes=(NodeFound("/dev/nvidia0", "c", 1, 3),)),
            "/dev/nvidia0 is c 1:3, not c 195:0",
        ),
        (
            replace(SEEN, nodes=(NodeFound("/dev/nvidia0", "b", 195, 0),)),
            "/dev/nvidia0 is b 195:0, not c 195:0",
        ),
        (replace(SEEN, rules=()), "/dev/nvidia0: the device cgroup denies rw"),
        (
            replace(SEEN, rules=(Rule("c", 195, 0, "r"),)),
            "/dev/nvidia0: the device cgroup denies w",
        ),
        (
            without_record(env=(("PATH", "/bin"), ("LD_PRELOAD", LIBRARY))),
            "the variable CUDA_DEVICE_SM_LIMIT is not set",
        ),
        (
            without_record(env=(("CUDA_DEVICE_SM_LIMIT", SECRET), *RECORD.env[2:], ("HOME", "/"))),
            "the variable CUDA_DEVICE_SM_LIMIT has another value",
        ),
        (
            replace(SEEN, env=(), record=replace(RECORD, env=(("PATH", "/bin"), *EDITS.env[1:]))),
            "the variable CUDA_DEVICE_SM_LIMIT is not set",
        ),
        (
            without_record(env=(("PATH", "/bin"), EDITS.env[0], ("LD_PRELOAD", "/own.so"))),
            "the variable LD_PRELOAD has another value",
        ),
        (replace(SEEN, mounts=()), f"{LIBRARY} is not mounted"),
        (
            replace(SEEN, mounts=(MountFound(LIBRARY, Origin("0:1", "/"), "tmpfs"),)),
            f"what is mounted at {LIBRARY} is not {LIBRARY}",
        ),
        (
            replace(SEEN, mounts=(MOUNT, MountFound(LIBRARY, Origin("0:1", "/"), "tmpfs"))),
            f"what is mounted at {LIBRARY} is not {LIBRARY}",
        ),
        (
            without_record(limits=(Limit("RLIMIT_MEMLOCK", 65536, 65536),)),
            "the limit RLIMIT_MEMLOCK is lower",
        ),
    ],
)
def test_what_is_not_there_is_missing_and_named(evidence: Evidence, detail: str) -> None:
    found = judge(EDITS, CARDS, evidence)
    assert (found.verdict, found.details) == (Verdict.MISSING, (detail,))


@pytest.mark.parametrize(
    ("evidence", "detail"),
    [
        (Evidence(absent="it has no process (yet)"), "it has no process (yet)"),
        (without_record(nodes=None), "/dev/nvidia0: the container's /dev could not be looked into"),
        (without_record(rules=None), "nobody could read whether /dev/nvidia0 may be opened"),
        (without_record(mounts=None), f"{LIBRARY}: its mount could not be compared"),
        (without_record(origins={}), f"{LIBRARY}: its mount could not be compared"),
        (without_record(limits=None), "the limit RLIMIT_MEMLOCK could not be read"),
    ],
)
def test_what_could_not_be_looked_at_is_unknown_and_not_missing(
    evidence: Evidence, detail: str
) -> None:
    found = judge(EDITS, CARDS, evidence)
    assert (found.verdict, found.details) == (Verdict.UNKNOWN, (detail,))


@pytest.mark.parametrize("env", [None, (), (("LANG", "C"),)])
def test_a_process_that_cleaned_its_environment_is_unknown_without_the_runtimes_record(
    env: tuple[tuple[str, str], ...] | None,
) -> None:
    found = judge(EDITS, CARDS, without_record(env=env))
    assert found.verdict is Verdict.UNKNOWN
    assert len(found.details) == 2
    assert judge(EDITS, CARDS, replace(SEEN, env=env)).verdict is Verdict.VERIFIED


def test_the_record_decides_where_nothing_else_can_be_seen() -> None:
    blind = Evidence(record=RECORD)
    assert judge(EDITS, CARDS, blind).verdict is Verdict.VERIFIED
    poor = judge(EDITS, CARDS, Evidence(record=Record()))
    assert poor.verdict is Verdict.MISSING
    assert len(poor.details) == 5


def test_a_preloaded_library_beside_the_containers_own_is_there() -> None:
    env = (("PATH", "/bin"), EDITS.env[0], ("LD_PRELOAD", f"{LIBRARY}:/own.so /more.so"))
    assert judge(EDITS, CARDS, without_record(env=env)).verdict is Verdict.VERIFIED


def test_a_limit_that_the_process_lowered_itself_was_given_all_the_same() -> None:
    lowered = replace(SEEN, limits=(Limit("RLIMIT_MEMLOCK", 1, 1),))
    assert judge(EDITS, CARDS, lowered).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(
    ("evidence", "detail"),
    [
        (
            replace(SEEN, nodes=(*RECORD.nodes, NodeFound("/dev/x", "c", *OTHER))),
            "/dev/x shows card-1, which was not granted, though the device cgroup keeps it shut",
        ),
        (
            replace(
                SEEN,
                nodes=(*RECORD.nodes, NodeFound("/dev/x", "c", *OTHER)),
                rules=(MAY, Rule("c", 195, None, "rw")),
            ),
            "/dev/x shows card-1, which was not granted",
        ),
        (
            replace(SEEN, rules=(MAY, Rule("c", *OTHER, "r"))),
            "card-1 may be opened, which was not granted",
        ),
        (
            replace(SEEN, rules=None, record=replace(RECORD, rules=(Rule("c", 195, None, "rwm"),))),
            "card-1 may be opened, which was not granted",
        ),
    ],
)
def test_a_device_of_somebody_else_is_excess_and_named(evidence: Evidence, detail: str) -> None:
    found = judge(EDITS, CARDS, evidence)
    assert (found.verdict, found.details) == (Verdict.EXCESS, (detail,))


def test_the_granted_card_that_a_makers_runtime_shows_by_itself_is_no_excess() -> None:
    shown = replace(
        SEEN,
        nodes=(*RECORD.nodes, NodeFound("/dev/nvidia1", "c", *OTHER)),
        rules=(MAY, Rule("c", *OTHER, "rw")),
    )
    assert judge(EDITS, CARDS, shown).verdict is Verdict.EXCESS
    assert judge(EDITS, CARDS, shown, frozenset((OTHER,))).verdict is Verdict.VERIFIED


def test_a_privileged_container_is_not_blamed_for_what_it_does_not_show() -> None:
    everything = replace(SEEN, rules=(Rule("a", None, None, "rwm"),))
    assert judge(EDITS, CARDS, everything).verdict is Verdict.VERIFIED


@pytest.mark.parametrize(
    "rule", [Rule("b", *OTHER, "rw"), Rule("c", *OTHER, "m"), Rule("c", 10, None, "rw"), DENIED]
)
def test_rules_about_something_else_are_no_excess(rule: Rule) -> None:
    assert judge(EDITS, CARDS, replace(SEEN, rules=(rule, MAY))).verdict is Verdict.VERIFIED


def test_missing_weighs_more_than_excess_and_both_are_told() -> None:
    both = replace(SEEN, nodes=(NodeFound("/dev/x", "c", *OTHER),))
    found = judge(EDITS, CARDS, both)
    assert found.verdict is Verdict.MISSING
    assert [detail.split()[0] for detail in found.details] == ["/dev/nvidia0", "/dev/x"]


def test_no_value_of_a_containers_environment_is_ever_told() -> None:
    env = (("CUDA_DEVICE_SM_LIMIT", SECRET), ("LD_PRELOAD", SECRET), ("PATH", SECRET))
    found = judge(EDITS, CARDS, without_record(env=env))
    assert SECRET not in "".join(found.details)


def test_the_details_of_one_container_have_a_bound() -> None:
    node = EDITS.nodes[0]
    many = tuple(replace(node, path=f"/dev/n{i}", minor=i) for i in range(100))
    found = judge(ContainerEdits(nodes=many), CARDS, replace(SEEN, nodes=(), rules=None))
    assert len(found.details) == MAX_DETAILS
