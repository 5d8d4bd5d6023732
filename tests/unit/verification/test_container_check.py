from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.snapshot.allocation import VerificationCause, VerificationStatus
from agent.snapshot.device import DeviceNode
from agent.snapshot.edits import ContainerEdits, DeviceNodeEdit
from agent.verification.container_check import MAX_DETAILS, DeviceNodes, check_container
from agent.verification.observation import (
    ContainerObservation,
    DeviceRule,
    MountOrigin,
    ObservedMount,
    ObservedNode,
    ResourceLimit,
    RuntimeRecord,
)
from tests.unit.verification.example import (
    CARD,
    CARDS,
    DENIED,
    EDITS,
    LIBRARY,
    MAY,
    MOUNT,
    OBSERVATION,
    OTHER,
    OWN,
    RECORD,
)

SECRET = "hunter2"


def test_a_complete_container_is_verified_without_a_detail() -> None:
    result = check_container(EDITS, OWN, CARDS, OBSERVATION)
    assert (result.verdict, result.details) == (VerificationStatus.VERIFIED, ())


def without_record(**changes: object) -> ContainerObservation:
    return replace(OBSERVATION, record=None, **changes)


@pytest.mark.parametrize(
    ("evidence", "detail"),
    [
        (replace(OBSERVATION, nodes=()), "/dev/nvidia0 is not there"),
        (
            replace(OBSERVATION, nodes=(ObservedNode("/dev/nvidia0", "c", 1, 3),)),
            "/dev/nvidia0 is c 1:3, not c 195:0",
        ),
        (
            replace(OBSERVATION, nodes=(ObservedNode("/dev/nvidia0", "b", 195, 0),)),
            "/dev/nvidia0 is b 195:0, not c 195:0",
        ),
        (replace(OBSERVATION, rules=()), "/dev/nvidia0: the device cgroup denies rw"),
        (
            replace(OBSERVATION, rules=(DeviceRule("c", 195, 0, "r"),)),
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
            replace(
                OBSERVATION, env=(), record=replace(RECORD, env=(("PATH", "/bin"), *EDITS.env[1:]))
            ),
            "the variable CUDA_DEVICE_SM_LIMIT is not set",
        ),
        (
            without_record(env=(("PATH", "/bin"), EDITS.env[0], ("LD_PRELOAD", "/own.so"))),
            "the variable LD_PRELOAD has another value",
        ),
        (replace(OBSERVATION, mounts=()), f"{LIBRARY} is not mounted"),
        (
            replace(
                OBSERVATION, mounts=(ObservedMount(LIBRARY, MountOrigin("0:1", "/"), "tmpfs"),)
            ),
            f"what is mounted at {LIBRARY} is not {LIBRARY}",
        ),
        (
            replace(
                OBSERVATION,
                mounts=(MOUNT, ObservedMount(LIBRARY, MountOrigin("0:1", "/"), "tmpfs")),
            ),
            f"what is mounted at {LIBRARY} is not {LIBRARY}",
        ),
        (
            without_record(limits=(ResourceLimit("RLIMIT_MEMLOCK", 65536, 65536),)),
            "the limit RLIMIT_MEMLOCK is lower",
        ),
    ],
)
def test_what_is_not_there_is_missing_and_named(
    evidence: ContainerObservation, detail: str
) -> None:
    result = check_container(EDITS, OWN, CARDS, evidence)
    assert (result.verdict, result.details) == (VerificationStatus.MISSING, (detail,))


@pytest.mark.parametrize(
    ("evidence", "detail"),
    [
        (ContainerObservation(absence_reason="it has no process (yet)"), "it has no process (yet)"),
        (without_record(nodes=None), "/dev/nvidia0: the container's /dev could not be looked into"),
        (without_record(rules=None), "nobody could read whether /dev/nvidia0 may be opened"),
        (without_record(mounts=None), f"{LIBRARY}: its mount could not be compared"),
        (without_record(origins={}), f"{LIBRARY}: its mount could not be compared"),
        (without_record(limits=None), "the limit RLIMIT_MEMLOCK could not be read"),
    ],
)
def test_an_uninspected_item_is_unknown_and_not_missing(
    evidence: ContainerObservation, detail: str
) -> None:
    result = check_container(EDITS, OWN, CARDS, evidence)
    assert (result.verdict, result.details) == (VerificationStatus.UNKNOWN, (detail,))


@pytest.mark.parametrize("env", [None, (), (("LANG", "C"),)])
def test_a_process_that_cleaned_its_environment_is_unknown_without_the_runtimes_record(
    env: tuple[tuple[str, str], ...] | None,
) -> None:
    result = check_container(EDITS, OWN, CARDS, without_record(env=env))
    assert result.verdict is VerificationStatus.UNKNOWN
    assert len(result.details) == 2
    assert (
        check_container(EDITS, OWN, CARDS, replace(OBSERVATION, env=env)).verdict
        is VerificationStatus.VERIFIED
    )


def test_the_record_decides_if_nothing_else_is_visible() -> None:
    blind = ContainerObservation(record=RECORD)
    assert check_container(EDITS, OWN, CARDS, blind).verdict is VerificationStatus.VERIFIED
    poor = check_container(EDITS, OWN, CARDS, ContainerObservation(record=RuntimeRecord()))
    assert poor.verdict is VerificationStatus.MISSING
    assert len(poor.details) == 5


def test_a_preloaded_library_beside_the_containers_own_is_there() -> None:
    env = (("PATH", "/bin"), EDITS.env[0], ("LD_PRELOAD", f"{LIBRARY}:/own.so /more.so"))
    assert (
        check_container(EDITS, OWN, CARDS, without_record(env=env)).verdict
        is VerificationStatus.VERIFIED
    )


def test_a_limit_that_the_process_lowered_itself_was_given_all_the_same() -> None:
    lowered = replace(OBSERVATION, limits=(ResourceLimit("RLIMIT_MEMLOCK", 1, 1),))
    assert check_container(EDITS, OWN, CARDS, lowered).verdict is VerificationStatus.VERIFIED


@pytest.mark.parametrize(
    ("evidence", "detail"),
    [
        (
            replace(OBSERVATION, nodes=(*RECORD.nodes, ObservedNode("/dev/x", "c", *OTHER))),
            "/dev/x shows card-1, which was not granted, though the device cgroup keeps it shut",
        ),
        (
            replace(
                OBSERVATION,
                nodes=(*RECORD.nodes, ObservedNode("/dev/x", "c", *OTHER)),
                rules=(MAY, DeviceRule("c", 195, None, "rw")),
            ),
            "/dev/x shows card-1, which was not granted",
        ),
        (
            replace(OBSERVATION, rules=(MAY, DeviceRule("c", *OTHER, "r"))),
            "card-1 may be opened, which was not granted",
        ),
        (
            replace(
                OBSERVATION,
                rules=None,
                record=replace(RECORD, rules=(DeviceRule("c", 195, None, "rwm"),)),
            ),
            "card-1 may be opened, which was not granted",
        ),
    ],
)
def test_a_device_of_another_pod_is_excess_and_named(
    evidence: ContainerObservation, detail: str
) -> None:
    result = check_container(EDITS, OWN, CARDS, evidence)
    assert (result.verdict, result.details) == (VerificationStatus.EXCESS, (detail,))


def test_nodes_belong_to_whom_they_are_whatever_the_edits_name() -> None:
    """An injector that takes the wrong card is found out, also when it got what it asked for."""
    wrong = DeviceNodeEdit(
        host_path="/dev/nvidia1", path="/dev/nvidia1", major=OTHER[0], minor=OTHER[1]
    )
    observation = replace(
        OBSERVATION,
        nodes=(ObservedNode("/dev/nvidia1", "c", *OTHER),),
        rules=(DeviceRule("c", *OTHER, "rw"),),
    )
    result = check_container(replace(EDITS, nodes=(wrong,)), OWN, CARDS, observation)
    assert result.verdict is VerificationStatus.EXCESS
    assert result.details == (
        "/dev/nvidia1 shows card-1, which was not granted",
        "card-0 is not there: no node is c 195:0",
    )


BY_VARIABLE = replace(EDITS, nodes=())  # a maker's runtime brings the nodes


@pytest.mark.parametrize(
    ("evidence", "verdict", "detail"),
    [
        (OBSERVATION, VerificationStatus.VERIFIED, ""),
        (
            replace(OBSERVATION, nodes=(ObservedNode("/elsewhere", "c", *CARD),)),
            VerificationStatus.VERIFIED,
            "",
        ),
        # a hook of the maker's runtime, of which the record says nothing
        (
            replace(OBSERVATION, rules=None, record=replace(RECORD, nodes=())),
            VerificationStatus.VERIFIED,
            "",
        ),
        (
            replace(OBSERVATION, nodes=(), record=replace(RECORD, nodes=())),
            VerificationStatus.MISSING,
            "card-0 is not there: no node is c 195:0",
        ),
        (
            replace(OBSERVATION, nodes=(ObservedNode("/dev/nvidia0", "b", *CARD),), record=None),
            VerificationStatus.MISSING,
            "card-0 is not there: no node is c 195:0",
        ),
        (
            replace(OBSERVATION, rules=(DeviceRule("c", *CARD, "r"),)),
            VerificationStatus.MISSING,
            "card-0: the device cgroup denies w",
        ),
        (
            replace(OBSERVATION, rules=None, record=replace(RECORD, rules=(DENIED,))),
            VerificationStatus.MISSING,
            "card-0: the device cgroup denies rw",
        ),
        (
            replace(OBSERVATION, nodes=None, record=replace(RECORD, nodes=())),
            VerificationStatus.UNKNOWN,
            "card-0: the container's /dev could not be looked into",
        ),
    ],
)
def test_a_granted_card_must_be_there_by_its_own_numbers(
    evidence: ContainerObservation, verdict: VerificationStatus, detail: str
) -> None:
    result = check_container(BY_VARIABLE, OWN, CARDS, evidence)
    assert (result.verdict, result.details) == (verdict, (detail,) if detail else ())


def test_a_device_whose_nodes_nobody_knows_is_never_verified() -> None:
    result = check_container(BY_VARIABLE, (DeviceNodes(name="card-0"),), CARDS, OBSERVATION)
    assert (result.verdict, result.details) == (
        VerificationStatus.UNKNOWN,
        ("no device node of card-0 is known",),
    )


def test_of_a_device_with_several_nodes_one_may_be_enough() -> None:
    nodes = (*OWN[0].nodes, DeviceNode(path="/dev/more", major=7, minor=7))
    both = (DeviceNodes(name="card-0", nodes=nodes),)
    assert (
        check_container(BY_VARIABLE, both, CARDS, OBSERVATION).verdict is VerificationStatus.MISSING
    )
    one = (replace(both[0], is_one_enough=True),)
    assert (
        check_container(BY_VARIABLE, one, CARDS, OBSERVATION).verdict is VerificationStatus.VERIFIED
    )
    assert check_container(EDITS, one, CARDS, OBSERVATION).verdict is VerificationStatus.VERIFIED
    none = replace(OBSERVATION, nodes=(), record=None)
    assert check_container(BY_VARIABLE, one, CARDS, none).verdict is VerificationStatus.MISSING


def test_a_device_that_may_be_there_is_neither_missing_nor_excess() -> None:
    free = (*OWN, DeviceNodes(name="card-1", is_optional=True))
    observation = replace(
        OBSERVATION, nodes=(*RECORD.nodes, ObservedNode("/dev/nvidia1", "c", *OTHER))
    )
    assert check_container(EDITS, free, CARDS, OBSERVATION).verdict is VerificationStatus.VERIFIED
    assert check_container(EDITS, free, CARDS, observation).verdict is VerificationStatus.VERIFIED
    assert check_container(EDITS, OWN, CARDS, observation).verdict is VerificationStatus.EXCESS


def test_what_is_not_known_does_not_keep_the_devices_from_being_compared() -> None:
    nothing = ContainerEdits()
    result = check_container(nothing, OWN, CARDS, OBSERVATION, "DeviceUnknown: gone")
    assert (result.verdict, result.details) == (
        VerificationStatus.UNKNOWN,
        ("what it should have cannot be told: DeviceUnknown: gone",),
    )
    observation = replace(
        OBSERVATION, nodes=(*RECORD.nodes, ObservedNode("/dev/nvidia1", "c", *OTHER))
    )
    assert (
        check_container(nothing, OWN, CARDS, observation, "gone").verdict
        is VerificationStatus.EXCESS
    )


def test_rules_of_the_record_are_not_believed_after_systemd_dropped_them() -> None:
    by_record = replace(OBSERVATION, rules=None, denied_after_reload=frozenset((CARD,)))
    text = "systemd was reloaded since, without /dev/char/195:0 it denies the device"
    result = check_container(EDITS, OWN, CARDS, by_record)
    assert (result.verdict, result.details) == (
        VerificationStatus.UNKNOWN,
        (f"/dev/nvidia0: {text}",),
    )
    assert result.causes == (VerificationCause.SYSTEMD_RELOADED,)
    denied = check_container(EDITS, OWN, CARDS, replace(OBSERVATION, rules=()))
    assert denied.causes == (VerificationCause.DEVICE_DENIED,)
    other = replace(by_record, denied_after_reload=frozenset((OTHER,)))
    assert check_container(EDITS, OWN, CARDS, other).verdict is VerificationStatus.VERIFIED
    # the kernel's own rules are what counts
    kernel = replace(OBSERVATION, denied_after_reload=frozenset((CARD,)))
    assert check_container(EDITS, OWN, CARDS, kernel).verdict is VerificationStatus.VERIFIED


def test_a_privileged_container_is_not_blamed_for_what_it_does_not_show() -> None:
    everything = replace(OBSERVATION, rules=(DeviceRule("a", None, None, "rwm"),))
    assert check_container(EDITS, OWN, CARDS, everything).verdict is VerificationStatus.VERIFIED


@pytest.mark.parametrize(
    "rule",
    [
        DeviceRule("b", *OTHER, "rw"),
        DeviceRule("c", *OTHER, "m"),
        DeviceRule("c", 10, None, "rw"),
        DENIED,
    ],
)
def test_rules_about_something_else_are_no_excess(rule: DeviceRule) -> None:
    assert (
        check_container(EDITS, OWN, CARDS, replace(OBSERVATION, rules=(rule, MAY))).verdict
        is VerificationStatus.VERIFIED
    )


def test_excess_outranks_missing_and_both_are_reported() -> None:
    both = replace(OBSERVATION, nodes=(ObservedNode("/dev/x", "c", *OTHER),))
    result = check_container(EDITS, OWN, CARDS, both)
    assert result.verdict is VerificationStatus.EXCESS
    assert [detail.split()[0] for detail in result.details] == ["/dev/x", "/dev/nvidia0"]


def test_no_value_of_a_containers_environment_is_ever_reported() -> None:
    env = (("CUDA_DEVICE_SM_LIMIT", SECRET), ("LD_PRELOAD", SECRET), ("PATH", SECRET))
    result = check_container(EDITS, OWN, CARDS, without_record(env=env))
    assert SECRET not in "".join(result.details)


def test_the_details_of_one_container_have_a_bound() -> None:
    node = EDITS.nodes[0]
    many = tuple(replace(node, path=f"/dev/n{i}", minor=i) for i in range(100))
    result = check_container(
        ContainerEdits(nodes=many), (), CARDS, replace(OBSERVATION, nodes=(), rules=None)
    )
    assert len(result.details) == MAX_DETAILS
