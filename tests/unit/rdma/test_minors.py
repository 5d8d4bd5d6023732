from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ParseError
from plugins.vendors.rdma.discovery.minors import (
    MAX_MINORS,
    MinorRequest,
    RdmaDeviceRecord,
    RdmaState,
    RdmaStateFile,
    RdmaStateStore,
    assign_minors,
    decode_state,
    encode_state,
    kernel_number,
)

BOOT = "0b7c2a52-1f3e-4c55-9d80-6c1b6a3f6f10"


def claims(*names: str) -> list[MinorRequest]:
    """Name devices in PCI order; their keys are their places in it."""
    return [MinorRequest(f"slot{at}", name) for at, name in enumerate(names)]


def numbers(names: list[MinorRequest], stored: dict[str, int] | None = None) -> list[int | None]:
    given_ = assign_minors(names, stored or {})
    return [given_.get(claim.key) for claim in names]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(("mlx5_0", "mlx5_3", "mlx5_10"), [0, 3, 10], id="V62"),
        pytest.param(("ibp24s0", "ibp64s0"), [0, 1], id="V63"),
        pytest.param(("mlx4_0", "mlx5_0", "mlx5_1"), [0, 2, 1], id="V64"),
        pytest.param(("bnxt_re0", "mlx5_0", "irdma1"), [2, 0, 1], id="V65"),
        pytest.param(("rocep31s0f0", "rocep31s0f1", "mlx5_1"), [0, 2, 1], id="V66"),
        pytest.param(("mlx5_bond_0", "mlx5_0"), [1, 0], id="V67"),
        pytest.param(("qib0",), [0], id="V72-the-name-wants-nothing"),
        pytest.param(("mlx5_999", "mlx5_0"), [1, 0], id="a-number-beyond-the-range"),
    ],
)
def test_numbers(names: tuple[str, ...], expected: list[int]) -> None:
    assert numbers(claims(*names)) == expected


def test_a_stored_number_wins_vector_68() -> None:
    assert numbers(claims("mlx5_7", "mlx5_1"), {"slot0": 1}) == [1, 0]


def test_a_renamed_device_keeps_its_number_vector_85() -> None:
    first = assign_minors(claims("mlx5_0", "mlx5_1"), {})
    assert assign_minors(claims("ibp24s0", "mlx5_1"), first) == first


def test_another_card_in_the_same_slot_gets_a_new_number() -> None:
    stored = {"0000:18:00.0 15b3:101b": 0}
    replacement = [MinorRequest("0000:18:00.0 15b3:1021", "mlx5_0")]
    assert assign_minors(replacement, stored) == {"0000:18:00.0 15b3:1021": 1}


def test_the_numbers_of_devices_that_are_away_are_not_given_to_others() -> None:
    assert numbers(claims("ibp24s0"), {"gone": 0}) == [1]


def test_more_devices_than_numbers_leave_some_without() -> None:
    result = numbers(claims(*("ibp0s0" for _ in range(MAX_MINORS + 3))))
    assert result[:MAX_MINORS] == list(range(MAX_MINORS))
    assert result[MAX_MINORS:] == [None] * 3


def test_numbers_in_other_devices_names_are_used_last() -> None:
    names = ["ibp0s0", *(f"mlx5_{n}" for n in range(500)), *("mlx5_5" for _ in range(11))]
    result = numbers(claims(*names))
    assert sorted(n for n in result if n is not None) == list(range(MAX_MINORS))


_NAMES = st.lists(
    st.one_of(
        st.from_regex(
            r"(mlx5_|mlx4_|bnxt_re|irdma|mlx5_bond_|rxe|ibp|rocep)[0-9]{1,3}", fullmatch=True
        ),
        st.text(max_size=20),
    ),
    max_size=40,
)


@given(_NAMES, st.dictionaries(st.sampled_from([f"slot{n}" for n in range(60)]), st.none()))
def test_numbers_are_unique_and_stable_and_stored_ones_win(
    names: list[str], stored_keys: dict[str, None]
) -> None:
    stored = {key: 7 * at % MAX_MINORS for at, key in enumerate(stored_keys)}
    requests = claims(*names)
    minors = assign_minors(requests, stored)
    assert len(set(minors.values())) == len(minors) == len(requests)
    assert all(0 <= number < MAX_MINORS for number in minors.values())
    assert all(minors[key] == number for key, number in stored.items() if key in minors)
    assert set(minors.values()).isdisjoint(n for key, n in stored.items() if key not in minors)
    assert assign_minors(requests[::-1], stored | minors) == minors


@given(st.text(max_size=40))
def test_any_name_may_have_a_number_or_none(name: str) -> None:
    number = kernel_number(name)
    assert number is None or 0 <= number < MAX_MINORS


STATE = RdmaState(
    {"0000:18:00.0 15b3:101b": 3},
    {
        "0000:18:00.0": RdmaDeviceRecord(
            name="mlx5_3", guid="0c42a10300112233", driver="mlx5_core", used_ports=(1,)
        )
    },
)


def test_the_state_is_read_back() -> None:
    assert decode_state(encode_state(STATE, BOOT), BOOT) == STATE


def test_numbers_outlive_a_reboot_and_sightings_do_not() -> None:
    assert decode_state(encode_state(STATE, BOOT), "another") == RdmaState(STATE.minors, {})


def test_without_a_boot_id_no_sighting_is_believed() -> None:
    assert not decode_state(encode_state(STATE, ""), "").records


GOOD = json.loads(encode_state(STATE, BOOT))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode_state(STATE, BOOT)[:40], id="row-22-truncated"),
        pytest.param(json.dumps(GOOD | {"version": 2}).encode(), id="row-22-other-version"),
        pytest.param(json.dumps(GOOD | {"minors": {"a": 2**31}}).encode(), id="row-22-minor-2-31"),
        pytest.param(json.dumps(GOOD | {"minors": {"a": 1, "b": 1}}).encode(), id="row-22-twice"),
        pytest.param(
            json.dumps(GOOD | {"minors": {"a": True}}).encode(), id="a-minor-that-is-true"
        ),
        pytest.param(json.dumps(GOOD | {"minors": [1]}).encode(), id="minors-are-a-list"),
        pytest.param(
            json.dumps(GOOD | {"seen": {"x": 1}}).encode(), id="a-sighting-that-is-a-number"
        ),
        pytest.param(json.dumps(GOOD | {"seen": None}).encode(), id="no-sightings"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"\xff\xfe", id="bytes"),
        pytest.param(b"[]", id="a-list"),
    ],
)
def test_a_damaged_file_is_put_aside_and_rebuilt(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "rdma.json").write_bytes(data)
    state_store = RdmaStateStore(str(tmp_path), BOOT)
    assert state_store.state == RdmaState()
    assert state_store.problem is not None
    assert state_store.problem.reason == "StateFileDamaged"
    assert (tmp_path / "rdma.json.bad").read_bytes() == data
    assert state_store.assign(claims("mlx5_4")) == {"slot0": 4}
    state_store.save_records({})
    assert decode_state((tmp_path / "rdma.json").read_bytes(), BOOT).minors == {"slot0": 4}


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(ParseError):
        decode_state(data, BOOT)


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=12), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_JSON, _JSON)
def test_no_json_makes_the_reader_raise_anything_else(minors: object, seen: object) -> None:
    body = {"version": 1, "boot_id": BOOT, "minors": minors, "seen": seen}
    with contextlib.suppress(ParseError):
        decode_state(json.dumps(body).encode(), BOOT)


def test_without_a_directory_nothing_is_written(tmp_path: Path) -> None:
    state_store = RdmaStateStore(None, BOOT)
    state_store.assign(claims("mlx5_0"))
    state_store.save_records({})
    assert not list(tmp_path.iterdir())


def test_the_file_is_written_only_when_it_changes(tmp_path: Path) -> None:
    file = RdmaStateFile(str(tmp_path / "new"), BOOT)
    file.save(STATE)
    (tmp_path / "new" / "rdma.json").unlink()
    file.save(STATE)
    assert not list((tmp_path / "new").iterdir())


def test_a_directory_that_cannot_be_written_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state_store = RdmaStateStore(str(tmp_path / "file"), BOOT)
    state_store.save_records({})
    assert state_store.problem is not None
    assert state_store.problem.reason == "StateNotWritten"


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rdma.json").write_bytes(b" " * ((1 << 20) + 1))
    state_store = RdmaStateStore(str(tmp_path), BOOT)
    assert state_store.problem is not None


def test_numbers_of_devices_that_are_no_more_are_used_again_once_there_is_no_other(
    tmp_path: Path,
) -> None:
    state_store = RdmaStateStore(str(tmp_path), BOOT)
    state_store.assign([MinorRequest(f"soft-{at}", "rxe") for at in range(MAX_MINORS)])
    stays, comes = MinorRequest("soft-0", "rxe"), MinorRequest("0000:18:00.0 15b3:1021", "mlx5_7")
    result = state_store.assign([comes, stays])
    assert result["soft-0"] == 0
    assert result[comes.key] == 1
    state_store.save_records({})
    again = RdmaStateStore(str(tmp_path), BOOT)
    assert again.problem is None
    assert again.assign([comes, stays]) == result
    assert "soft-1" not in again.state.minors
