from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.snapshot.device import DevicePartition
from agent.snapshot.inventory import SliceRequest
from plugins.vendors.cambricon.library.card import CndevCard, MluInstance
from plugins.vendors.cambricon.library.cndev import Cndev
from plugins.vendors.cambricon.smlu.maker import DivisibleCard, make_slice, reconcile_slices
from plugins.vendors.cambricon.smlu.ownership import OwnedSmlu, SmluOwnershipFile
from plugins.vendors.cambricon.smlu.profiles import request_of
from tests.stubs.stub import Stub
from tests.unit.cambricon.cards import card as lines_of
from tests.unit.cambricon.cards import stub_of

KEY = "0000:3b:00.0"
A = SliceRequest(pod="pod-a", device=KEY, core_percent=50, memory_bytes=1 << 30)
B = SliceRequest(pod="pod-b", device=KEY, core_percent=30, memory_bytes=(1 << 30) + 5)


def _describe(instance: MluInstance) -> DevicePartition:
    return DevicePartition(uuid=f"s{instance.number}", profile="", instance=instance.number)


def _no_pause(seconds: float) -> None:
    assert seconds == 1.0


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Return the stub of one card that sMLU cuts, for use in this very process."""
    created = stub_of(tmp_path, "count 1", *lines_of(0, smlu_mode=1))
    for name, value in created.environment.items():
        monkeypatch.setenv(name, value)
    return created


@pytest.fixture
def cards(stub: Stub) -> dict[str, DivisibleCard]:
    """Return the card by its key."""
    card = CndevCard(Cndev(str(stub.path)), 0)
    return {KEY: DivisibleCard(card=card, unit_mib=256, describe=_describe)}


@pytest.fixture
def owned(tmp_path: Path) -> SmluOwnershipFile:
    """Return the list of what is ours."""
    return SmluOwnershipFile(str(tmp_path / "state"), "boot")


def test_a_wish_is_fulfilled_once_however_often_it_is_wished(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile
) -> None:
    first = reconcile_slices(owned, cards, [A], None, _no_pause)
    again = reconcile_slices(owned, cards, [A], ["pod-a"], _no_pause)
    assert first.made == again.made
    assert (first.changed, again.changed) == (True, False)
    assert len(cards[KEY].card.smlu_instances()) == 1


def test_slices_of_ended_pods_are_deleted_and_those_of_others_stay(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile
) -> None:
    reconcile_slices(owned, cards, [A, B], None, _no_pause)
    report = reconcile_slices(owned, cards, [B], ["pod-b"], _no_pause)
    assert [created.pod for created in report.made] == ["pod-b"]
    assert len(report.reclaimed) == 1
    assert report.changed
    assert "pod-a" in report.reclaimed[0]
    assert [item.owner for item in owned.read()] == ["pod-b"]


def test_slices_in_use_of_pods_that_are_gone_hold_up_no_other(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile, stub: Stub
) -> None:
    orphans = [replace(B, pod=f"gone-{n}", core_percent=10) for n in range(4)]
    reconcile_slices(owned, cards, orphans, None, _no_pause)
    stub.add("call.cndevDestroySMluInstanceByHandle.ret 15")
    pauses: list[float] = []
    report = reconcile_slices(owned, cards, [A], ["pod-a"], pauses.append)
    assert [one.pod for one in report.made] == ["pod-a"]
    assert (len(report.failed), len(pauses)) == (4, 4)


def test_nothing_is_deleted_while_the_pods_are_unknown(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile
) -> None:
    reconcile_slices(owned, cards, [A], None, _no_pause)
    assert reconcile_slices(owned, cards, [], None, _no_pause).reclaimed == ()
    assert len(cards[KEY].card.smlu_instances()) == 1


def test_a_slice_that_a_reset_removed_is_reported_as_lost(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile, stub: Stub
) -> None:
    reconcile_slices(owned, cards, [A], None, _no_pause)
    (stub.folder / "scenario.state").unlink()
    report = reconcile_slices(owned, cards, [], ["pod-a"], _no_pause)
    assert report.lost == ("pod-a",)
    assert report.changed
    assert owned.read() == ()


def _ended_while_making(
    owned: SmluOwnershipFile, cards: dict[str, DivisibleCard], folder: Path, *, created: int
) -> None:
    """Leave what a worker leaves that the agent ends in the driver's call; others were faster."""
    reconcile_slices(owned, cards, [B], None, _no_pause)
    card = cards[KEY].card
    before = tuple(one.number for one in card.smlu_instances())
    size, _ = request_of(0, 50, 1 << 30, 256)
    others = SmluOwnershipFile(str(folder / "others"), "boot")
    profile = max((one.profile for one in card.smlu_instances()), default=0) + 1
    for number in range(created):
        profile = make_slice(card, size, 256, f"other-{number}", others)[0].profile
    uuid = card.uuid() or ""
    coming = OwnedSmlu(
        card_uuid=uuid, card=0, profile=profile, owner="pod-a", before=before, boot="boot"
    )
    owned.record_intent(coming)


@pytest.mark.parametrize(
    ("made", "instances"), [(0, [1, 2]), (1, [1, 2]), (2, [1, 2, 3])], ids=["none", "one", "two"]
)
def test_a_slice_that_a_worker_was_ended_over_is_found_again(
    made: int,
    instances: list[int],
    cards: dict[str, DivisibleCard],
    owned: SmluOwnershipFile,
    tmp_path: Path,
) -> None:
    _ended_while_making(owned, cards, tmp_path, created=made)
    report = reconcile_slices(owned, cards, [A, B], ["pod-a", "pod-b"], _no_pause)
    # of two new ones nobody knows whose they are, and the profile has no third
    assert [one.pod for one in report.made] == (["pod-b"] if made == 2 else ["pod-a", "pod-b"])
    assert [one.number for one in cards[KEY].card.smlu_instances()] == instances
    assert {item.owner for item in owned.read() if item.instance is None} == set()


def test_the_devices_are_read_again_when_a_slice_got_its_owner_back(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile, tmp_path: Path
) -> None:
    _ended_while_making(owned, cards, tmp_path, created=1)
    pods = ["pod-a", "pod-b"]
    reports = [reconcile_slices(owned, cards, [], pods, _no_pause) for _ in range(2)]
    assert [report.changed for report in reports] == [True, False]


@pytest.mark.parametrize("size", ["the same", "another"])
def test_a_slice_of_another_owner_is_not_taken_for_that_of_an_interrupted_creation(
    size: str, cards: dict[str, DivisibleCard], owned: SmluOwnershipFile, tmp_path: Path
) -> None:
    card, others = cards[KEY].card, SmluOwnershipFile(str(tmp_path / "others"), "boot")
    theirs, _ = make_slice(card, request_of(0, 30, 1 << 30, 256)[0], 256, "other", others)
    same = size == "the same"
    coming = OwnedSmlu(
        card_uuid=card.uuid() or "",
        card=0,
        profile=theirs.profile if same else theirs.profile + 1,
        owner="pod-a",
        before=(1,) if same else (),
        boot="boot",
    )
    owned.record_intent(coming)
    assert reconcile_slices(owned, cards, [], [], _no_pause).reclaimed == ()
    assert owned.read() == ()
    assert [one.number for one in card.smlu_instances()] == [1]


@pytest.mark.parametrize("times", ["", " x1"], ids=["ever", "once"])
def test_nothing_is_cut_while_it_is_not_known_what_became_of_an_earlier_try(
    times: str,
    cards: dict[str, DivisibleCard],
    owned: SmluOwnershipFile,
    stub: Stub,
    tmp_path: Path,
) -> None:
    _ended_while_making(owned, cards, tmp_path, created=1)
    stub.add(f"call.cndevGetAllSMluInstanceInfo.ret 999{times}")
    report = reconcile_slices(owned, cards, [A], ["pod-a", "pod-b"], _no_pause)
    assert [(one.pod, one.reason) for one in report.unmade] == [("pod-a", "SliceRefused")]
    assert [item.instance for item in owned.read()] == [1, None]


def test_a_card_that_does_not_list_its_slices_loses_none(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile, stub: Stub
) -> None:
    reconcile_slices(owned, cards, [A], None, _no_pause)
    stub.add("call.cndevGetAllSMluInstanceInfo.ret 10")
    assert reconcile_slices(owned, cards, [], ["pod-a"], _no_pause).lost == ()
    assert len(owned.read()) == 1


def test_slices_of_another_boot_are_not_the_agents(
    cards: dict[str, DivisibleCard], owned: SmluOwnershipFile, tmp_path: Path
) -> None:
    reconcile_slices(owned, cards, [A], None, _no_pause)
    after = SmluOwnershipFile(str(tmp_path / "state"), "next boot")
    report = reconcile_slices(after, cards, [], [], _no_pause)
    assert (report.reclaimed, report.lost) == ((), ())
    assert len(cards[KEY].card.smlu_instances()) == 1


def test_without_a_place_to_write_it_down_nothing_is_cut(cards: dict[str, DivisibleCard]) -> None:
    report = reconcile_slices(None, cards, [A], [], _no_pause)
    assert [(one.pod, one.reason) for one in report.unmade] == [("pod-a", "SliceRefused")]
    assert cards[KEY].card.smlu_instances() == ()


@pytest.mark.parametrize(
    "wish",
    [
        SliceRequest(pod="p", device="0000:00:00.0", core_percent=50, memory_bytes=1 << 30),
        SliceRequest(pod="p", device=KEY, memory_bytes=1 << 30),
        SliceRequest(pod="p", device=KEY, core_percent=0, memory_bytes=1 << 30),
        SliceRequest(pod="p", device=KEY, core_percent=50, memory_bytes=1),
    ],
)
def test_a_wish_that_makes_no_sense_keeps_no_other_from_its_slice(
    wish: SliceRequest, cards: dict[str, DivisibleCard], owned: SmluOwnershipFile
) -> None:
    report = reconcile_slices(owned, cards, [wish, A], None, _no_pause)
    assert [one.pod for one in report.unmade] == ["p"]
    assert [one.pod for one in report.made] == ["pod-a"]
