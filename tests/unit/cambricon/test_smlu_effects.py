from __future__ import annotations

from pathlib import Path

import pytest

from plugins.vendors.cambricon.library.card import CndevCard
from plugins.vendors.cambricon.library.cndev import Cndev
from plugins.vendors.cambricon.library.codes import CndevFault
from plugins.vendors.cambricon.smlu.maker import (
    destroy_slice,
    make_slice,
    orphaned_slices,
    read_profiles,
)
from plugins.vendors.cambricon.smlu.ownership import OwnedSmlu, OwnershipUnknown, SmluOwnershipFile
from plugins.vendors.cambricon.smlu.profiles import SliceRefused, SmluRequest
from tests.stubs.stub import Stub
from tests.unit.cambricon.cards import card as lines_of
from tests.unit.cambricon.cards import stub_of

UNIT_MIB = 256
SLICE = SmluRequest(card=0, core_percent=50, units=4)
CARD = ("count 1", *lines_of(0, smlu_mode=1))


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """Return the stub of one card in sMLU mode, for use in this process."""
    built = stub_of(tmp_path, *CARD)
    for name, value in built.environment.items():
        monkeypatch.setenv(name, value)
    return built


@pytest.fixture
def card(stub: Stub) -> CndevCard:
    """Return the card."""
    return CndevCard(Cndev(str(stub.path)), 0)


@pytest.fixture
def owned(tmp_path: Path) -> SmluOwnershipFile:
    """Return the ownership file."""
    return SmluOwnershipFile(str(tmp_path / "state"), "boot")


def _no_pause(seconds: float) -> None:
    assert seconds == 1.0


def test_a_slice_is_created_and_recorded_as_the_agents(
    card: CndevCard, owned: SmluOwnershipFile
) -> None:
    owned_slice, instance = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    assert instance.nodes == ("/dev/cambricon-caps/cap_dev0_mi1",)
    assert (instance.cores, instance.memory_bytes) == (50, 1 << 30)
    assert owned.read() == (owned_slice,)
    assert owned_slice.owner == "pod-a"


def test_a_second_slice_of_the_size_uses_the_profile_that_is_there(
    card: CndevCard, owned: SmluOwnershipFile
) -> None:
    first, _ = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    second, _ = make_slice(card, SLICE, UNIT_MIB, "pod-b", owned)
    assert (first.profile, first.instance) != (second.profile, second.instance)
    assert first.profile == second.profile
    assert len(read_profiles(card)) == 1


def test_a_third_of_which_none_is_left_is_refused_and_leaves_no_trace(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    for name in ("pod-a", "pod-b"):
        make_slice(card, SLICE, UNIT_MIB, name, owned)
    before = stub.state()
    with pytest.raises(SliceRefused, match="no free slot"):
        make_slice(card, SLICE, UNIT_MIB, "pod-c", owned)
    assert stub.state() == before
    assert len(owned.read()) == 2


def test_a_destroyed_slice_takes_its_empty_profile_along(
    card: CndevCard, owned: SmluOwnershipFile
) -> None:
    first, _ = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    second, _ = make_slice(card, SLICE, UNIT_MIB, "pod-b", owned)
    destroy_slice(card, first, owned, _no_pause)
    assert [p.remain for p in read_profiles(card)] == [1]
    destroy_slice(card, second, owned, _no_pause)
    assert (read_profiles(card), card.smlu_instances(), owned.read()) == ((), (), ())


def test_a_slice_in_use_is_tried_again_and_stays_the_agents_after_the_last_try(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    owned_slice, _ = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    pauses: list[float] = []
    stub.add("call.cndevDestroySMluInstanceByHandle.ret 15")
    with pytest.raises(CndevFault, match="in use"):
        destroy_slice(card, owned_slice, owned, pauses.append)
    assert pauses == [1.0] * 4
    assert owned.read() == (owned_slice,)
    stub.play(*CARD, "call.cndevDestroySMluInstanceByHandle.ret 15 x2")
    destroy_slice(card, owned_slice, owned, pauses.append)
    assert (len(pauses), owned.read()) == (6, ())


def test_a_slice_that_another_program_destroyed_is_removed_from_the_file(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    owned_slice, _ = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    stub.add("call.cndevDestroySMluInstanceByHandle.ret 14")
    destroy_slice(card, owned_slice, owned, _no_pause)
    assert owned.read() == ()


@pytest.mark.parametrize(
    "change", [{"instance": 9}, {"card_uuid": "another card"}, {"owner": "pod-z"}]
)
def test_slices_of_others_are_never_destroyed(
    change: dict[str, object], card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    owned_slice, _ = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    values = {name: getattr(owned_slice, name) for name in OwnedSmlu.__struct_fields__}
    before = stub.state()
    with pytest.raises(SliceRefused, match="not ours"):
        destroy_slice(card, OwnedSmlu(**{**values, **change}), owned, _no_pause)
    assert stub.state() == before


def test_a_failing_create_leaves_no_profile_behind(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    stub.add("call.cndevCreateSMluInstanceByProfileId.ret 8")
    with pytest.raises(CndevFault):
        make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    assert (read_profiles(card), owned.read()) == ((), ())


def test_a_slice_that_reads_back_otherwise_is_taken_back(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    late = "call.cndevGetAllSMluInstanceInfo.ret 10"  # from the second listing on
    stub.add("mlu.0.profile.0 50:1073741824:2", late, "call.cndevGetAllSMluInstanceInfo.ret 0 x1")
    with pytest.raises(SliceRefused, match="does not list instance"):
        make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    stub.play(*CARD)
    again = CndevCard(card.cndev, card.index)  # the failed call is repeated
    assert (again.smlu_instances(), owned.read()) == ((), ())


def test_nothing_is_cut_of_a_card_that_does_not_list_its_slices(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    stub.add("call.cndevGetAllSMluInstanceInfo.ret 10")
    before = stub.state()
    with pytest.raises(SliceRefused, match="does not list its slices"):
        make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    assert (stub.state(), owned.read()) == (before, ())


def test_a_slice_that_cannot_be_written_down_is_not_made(card: CndevCard, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OwnershipUnknown):
        make_slice(
            card, SLICE, UNIT_MIB, "pod-a", SmluOwnershipFile(str(tmp_path / "file"), "boot")
        )
    assert card.smlu_instances() == ()


def test_a_card_that_smlu_does_not_cut_is_refused(
    card: CndevCard, stub: Stub, owned: SmluOwnershipFile
) -> None:
    stub.add("mlu.0.smlu_mode 0")
    with pytest.raises(SliceRefused, match="mode is off"):
        make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)


def test_a_list_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "smlu-owned.json").write_text("[{")
    with pytest.raises(OwnershipUnknown):
        SmluOwnershipFile(str(tmp_path), "boot").read()


def test_orphans_are_the_agents_slices_of_deleted_pods(
    card: CndevCard, owned: SmluOwnershipFile
) -> None:
    first, _ = make_slice(card, SLICE, UNIT_MIB, "pod-a", owned)
    make_slice(card, SLICE, UNIT_MIB, "pod-b", owned)
    assert orphaned_slices(owned.read(), frozenset({"pod-b"})) == (first,)
