"""What is told of containers from one snapshot to the next."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from agent.nri.runtime_view import RuntimeViewStore
from agent.objects.events import container_events
from agent.snapshot.allocation import (
    AllocationView,
    ContainerVerification,
    PodAllocation,
    VerificationStatus,
    VerificationView,
)
from agent.snapshot.container import RuntimeView
from agent.snapshot.node import NodeIdentity, NodeSnapshot
from agent.snapshot.part import SnapshotPart
from tests.runtime.handler import FunctionHandler
from tests.unit.nri.talk import nothing

NODE = NodeSnapshot(node=NodeIdentity(name="node-a"))


def events_of(*snapshots: NodeSnapshot) -> list[str]:
    """Return the reasons of all events from the first to the last."""
    before: tuple[NodeSnapshot | None, ...] = (None, *snapshots)
    pairs = zip(before, snapshots, strict=False)
    return [event.reason for old, new in pairs for event in container_events(old, new, 1.0)]


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("waiting", "synchronized"), []),
        (("waiting", "registered", "synchronized"), []),
        (("synchronized", "waiting", "synchronized"), ["RuntimeLost", "RuntimeBack"]),
        (("synchronized", "waiting", "registered", "synchronized"), ["RuntimeLost", "RuntimeBack"]),
        (("synchronized", "refused"), ["RuntimeLost"]),
        (("waiting", "refused", "refused"), ["RuntimeRefused"]),
    ],
)
def test_a_lost_runtime_and_its_return_are_events_but_not_the_first_connection(
    states: tuple[str, ...], expected: list[str]
) -> None:
    views: list[RuntimeView] = []
    picture = RuntimeViewStore(FunctionHandler(nothing, views.append))
    snapshots = []
    for state in states:
        picture.set_state(state, "Reason")
        view = replace(picture.view, runtime="" if state == "waiting" else "containerd")
        snapshots.append(replace(NODE, runtime=SnapshotPart(view, 1.0)))
    assert events_of(*snapshots) == expected


def test_a_refused_grant_is_reported_once_and_again_for_another_reason() -> None:
    def refused(reason: str) -> NodeSnapshot:
        grant = PodAllocation(
            uid="u", namespace="d", name="p", refusal=reason, message=f"{reason}: x"
        )
        return replace(NODE, allocations=SnapshotPart(AllocationView(pods={"u": grant}), 1.0))

    first = refused("DeviceTaken")
    same = refused("DeviceTaken")
    assert events_of(first, same, refused("WrongNode"), refused("")) == ["GrantRefused"] * 2
    # the sandbox is often made before the pod is listed: the refusal of a container has an event
    unknown = refused("PodRequestsUnknown")
    assert events_of(unknown) == []
    assert events_of(unknown, refused("GrantNotAskedFor")) == ["GrantRefused"]


def test_a_verdict_is_reported_when_it_changes_and_success_only_after_a_failure() -> None:
    def verification(verdict: VerificationStatus) -> NodeSnapshot:
        proof = ContainerVerification(
            container_id="1", pod_uid="u", namespace="d", pod="p", container="c", verdict=verdict
        )
        return replace(
            NODE, verification=SnapshotPart(VerificationView(containers={"1": proof}), 1.0)
        )

    verdicts = (
        VerificationStatus.VERIFIED,
        VerificationStatus.MISSING,
        VerificationStatus.MISSING,
        VerificationStatus.VERIFIED,
    )
    expected = ["AllocationNotVerified", "AllocationVerified"]
    assert events_of(*map(verification, verdicts)) == expected
    assert events_of(
        verification(VerificationStatus.UNKNOWN), verification(VerificationStatus.EXCESS)
    ) == ["AllocationNotVerified"]
