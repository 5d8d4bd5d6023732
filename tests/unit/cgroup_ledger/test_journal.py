from __future__ import annotations

import errno
import os
import resource
import signal
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent import durable
from agent.cgroup.keys import LARGE_READ
from agent.cgroup.ledger import (
    COMPACT_LEAST,
    MAX_LEDGER_BYTES,
    MAX_NEW_VALUES,
    MAX_OWN_VALUES,
    QUARANTINE,
    ChangeLedger,
    LedgerEntry,
    LedgerError,
    LedgerLine,
    decode_line,
    encode_line,
)
from tests.patience import PATIENCE_S

BOOT = "b5c3d2e1-0000-4000-8000-000000000001"
ENTRY = LedgerEntry(
    hierarchy="cpu",
    path="/kubepods/podx",
    inode=7,
    key="cpu.shares",
    owner="batch_resources",
    original="1024",
    own_values=("2",),
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.log")


def loaded(path: str, boot: str = BOOT) -> ChangeLedger:
    ledger = ChangeLedger(path, boot)
    ledger.load()
    return ledger


def entries(count: int) -> list[LedgerEntry]:
    return [replace(ENTRY, path=f"/kubepods/pod{number}") for number in range(count)]


def written(path: str, *all_of: LedgerEntry) -> ChangeLedger:
    ledger = loaded(path)
    for entry in all_of:
        ledger.set(entry)
    ledger.flush()
    return ledger


def test_what_was_flushed_is_there_after_a_restart(path: str) -> None:
    written(path, *entries(3))
    assert list(loaded(path).entries.values()) == entries(3)


def test_the_folder_is_made_with_the_first_line(tmp_path: Path) -> None:
    path = str(tmp_path / "var/lib/ledger.log")
    written(path, ENTRY)
    assert list(loaded(path).entries.values()) == [ENTRY]
    assert Path(path).parent.stat().st_mode & 0o777 == 0o750


def test_what_was_not_flushed_is_not(path: str) -> None:
    ledger = written(path, ENTRY)
    ledger.set(replace(ENTRY, path="/other"))
    assert list(loaded(path).entries) == [ENTRY.id]


def test_an_entry_that_is_undone_stays_away(path: str) -> None:
    ledger = written(path, *entries(2))
    ledger.drop(entries(2)[0], "undone")
    ledger.flush()
    assert list(loaded(path).entries.values()) == entries(2)[1:]


def test_the_same_entry_again_costs_no_line(path: str) -> None:
    ledger = written(path, ENTRY)
    size = Path(path).stat().st_size
    ledger.set(ENTRY)
    ledger.flush()
    assert Path(path).stat().st_size == size


def test_another_boot_has_other_cgroups(path: str) -> None:
    written(path, ENTRY)
    assert loaded(path, "another").entries == {}


def test_only_the_newest_values_of_the_agent_are_kept() -> None:
    before = tuple(map(str, range(MAX_OWN_VALUES)))
    entry = replace(ENTRY, own_values=before).with_own_values(["2", "33"], "other")
    assert entry.own_values == (before[1], *before[3:], "2", "33")
    assert (entry.owner, entry.with_own_values(["4"]).owner) == ("other", "other")


def test_an_entry_with_the_longest_values_of_a_file_is_read_again(path: str) -> None:
    longest = [
        "0," * (LARGE_READ // 2 - 4) + f"{number:08}" for number in range(MAX_OWN_VALUES + 1)
    ]
    entry = replace(ENTRY, original=longest[0], own_values=tuple(longest[1:]))
    written(path, entry)
    ledger = loaded(path)
    assert (ledger.problem, tuple(ledger.entries.values())) == ("", (entry,))


def test_values_that_were_written_a_moment_ago_cost_no_line() -> None:
    entry = replace(ENTRY, own_values=("1", "2", "3", "4", "5"))
    assert entry.with_own_values(["3", "2"], entry.owner) is entry
    assert entry.with_own_values(["1"]).own_values == ("2", "3", "4", "5", "1")
    assert entry.with_own_values(["3"], "other").owner == "other"


def test_only_original_values_wait_for_the_disk(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    monkeypatch.setattr(os, "fsync", syncs.append)
    ledger = written(path, ENTRY)
    assert len(syncs) == 2, "the file and, because it is new, its folder"
    changed = ENTRY.with_own_values(["512"])
    ledger.set(changed)
    ledger.flush()
    assert len(syncs) == 2, "the group and its value end with this kernel"
    assert loaded(path).entries[ENTRY.id] == changed, "another process has it nevertheless"
    resized = replace(changed, original="2048")
    ledger.set(resized)
    ledger.set(resized.with_own_values(["256"]))
    ledger.flush()
    assert len(syncs) == 3
    ledger.set(replace(resized, inode=8))
    ledger.flush()
    assert len(syncs) == 4, "another group of the same name"
    ledger.drop(ledger.entries[ENTRY.id], "gone")
    ledger.flush()
    assert len(syncs) == 4


def test_an_original_value_that_the_disk_refused_is_synced_with_the_next_lines(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = written(path, ENTRY)
    sync, fails = os.fsync, [True]

    def fsync(fd: int) -> None:
        if fails.pop() if fails else False:
            raise OSError(errno.EIO, "")
        syncs.append(fd)
        sync(fd)

    syncs: list[int] = []
    monkeypatch.setattr(os, "fsync", fsync)
    other = replace(ENTRY, path="/kubepods/pody")
    ledger.set(other)
    with pytest.raises(LedgerError):
        ledger.flush()
    ledger.set(ENTRY.with_own_values(["512"]))
    ledger.flush()
    assert len(syncs) == 1
    assert loaded(path).entries[other.id] == other


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=9, unique=True),
            st.integers(0, MAX_NEW_VALUES),
        )
    )
)
def test_the_value_that_a_file_has_until_the_write_stays_in_the_entry(
    writes: list[tuple[list[str], int]],
) -> None:
    entry, in_force = ENTRY, None
    for texts, made in ((texts[:MAX_NEW_VALUES], made) for texts, made in writes):
        entry = entry.with_own_values(texts, in_force=in_force)
        assert {*texts} <= {*entry.own_values}
        assert in_force is None or in_force in entry.own_values
        assert len(entry.own_values) <= MAX_OWN_VALUES
        in_force = texts[made - 1] if 0 < made <= len(texts) else in_force


def test_a_line_cut_short_at_any_byte_is_cut_off(path: str) -> None:
    written(path, *entries(2))
    whole = Path(path).read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        Path(path).write_bytes(whole[:end])
        ledger = loaded(path)
        assert list(ledger.entries.values()) == entries(1)
        assert ledger.problem == ""
        ledger.set(replace(ENTRY, path="/next"))
        ledger.flush()
        assert set(loaded(path).entries) == {entries(1)[0].id, ("cpu", "/next", "cpu.shares")}


def test_a_bad_last_line_is_cut_off_although_it_has_an_end(path: str) -> None:
    written(path, *entries(2))
    data = bytearray(Path(path).read_bytes())
    data[-5] ^= 1
    Path(path).write_bytes(data)
    ledger = loaded(path)
    assert (list(ledger.entries.values()), ledger.problem) == (entries(1), "")
    assert not Path(path + QUARANTINE).exists()


def test_a_bad_line_before_others_puts_the_file_aside_and_goes_on_with_the_rest(
    path: str,
) -> None:
    written(path, *entries(3))
    data = bytearray(Path(path).read_bytes())
    data[20] ^= 1
    Path(path).write_bytes(data)
    ledger = loaded(path)
    assert list(ledger.entries.values()) == entries(3)[1:]
    assert "put aside" in ledger.problem
    assert Path(path + QUARANTINE).read_bytes() == bytes(data)
    again = loaded(path)
    assert (list(again.entries.values()), again.problem) == (entries(3)[1:], "")


@pytest.mark.parametrize("good", [0, 1])
def test_lines_that_cannot_be_read_as_those_of_a_newer_version_are_put_aside_not_cut_off(
    path: str, good: int
) -> None:
    written(path, *entries(good))
    records = Path(path).read_bytes() if good else b""
    newer = b'{"v":99}\n' * (1 if good == 0 else 2)
    Path(path).write_bytes(records + newer)
    ledger = loaded(path)
    assert list(ledger.entries.values()) == entries(good)
    assert "put aside" in ledger.problem
    assert Path(path + QUARANTINE).read_bytes() == records + newer


def test_killed_while_a_damaged_file_is_mended_the_next_start_mends_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path, *entries(3))
    lines = Path(path).read_bytes().splitlines(keepends=True)
    Path(path).write_bytes(b"".join((lines[0], b"nonsense\n", *lines[1:])))
    real = os.replace
    for step in range(3):
        remaining = [step]

        def replaced(source: str, target: str, left: list[int] = remaining) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(5, "the machine stops here")
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replaced)
            if step < 2:
                with pytest.raises(LedgerError):
                    loaded(path)
            else:
                assert list(loaded(path).entries.values()) == entries(3)
    assert b"nonsense" in Path(path + QUARANTINE).read_bytes()
    assert list(loaded(path).entries.values()) == entries(3)


def test_a_disk_that_takes_no_rewritten_file_does_not_fill_the_memory(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = written(path, *entries(COMPACT_LEAST + 1))
    for entry in entries(COMPACT_LEAST + 1)[1:]:
        ledger.drop(entry, "gone")

    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr("agent.cgroup.ledger.replace_file", full)
    monkeypatch.setattr("agent.cgroup.ledger.MAX_PENDING", 10)
    for number in range(50):
        ledger.set(replace(ENTRY, path="/other", inode=number))
        with pytest.raises(LedgerError):
            ledger.flush()
        assert len(ledger._pending) <= 11
    monkeypatch.undo()
    ledger.flush()
    assert loaded(path).entries == ledger.entries


def test_many_lines_of_few_entries_are_compacted(path: str) -> None:
    ledger = loaded(path)
    for number in range(COMPACT_LEAST * 2):
        ledger.set(replace(ENTRY, own_values=(str(number),)))
        ledger.flush()
    assert Path(path).read_bytes().count(b"\n") <= COMPACT_LEAST
    assert loaded(path).entries[ENTRY.id].own_values[-1] == str(COMPACT_LEAST * 2 - 1)


def long_entries(count: int, first: int) -> list[LedgerEntry]:
    """Return entries of 48 KiB each; all values of another `first` are others."""
    texts = tuple(f"{first + number:0{LARGE_READ}}" for number in range(MAX_OWN_VALUES))
    return [replace(entry, own_values=texts) for entry in entries(count)]


def test_the_file_of_many_long_values_stays_so_small_that_it_is_read_again(path: str) -> None:
    ledger = loaded(path)
    for first in range(4):  # 80 MiB
        for entry in long_entries(400, first):
            ledger.set(entry)
        ledger.flush()
        assert Path(path).stat().st_size < MAX_LEDGER_BYTES
    again = loaded(path)
    assert again.problem == ""
    assert again.entries == ledger.entries


def test_a_ledger_whose_entries_are_large_is_not_compacted_with_each_change(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cgroup.ledger.COMPACT_BYTES", 1 << 20)
    rewrites = 0
    real = durable.replace_file

    def counted(path: str, data: bytes, mode: int) -> None:
        nonlocal rewrites
        rewrites += 1
        real(path, data, mode)

    monkeypatch.setattr("agent.cgroup.ledger.replace_file", counted)
    ledger = written(path, *long_entries(100, 0))  # 5 MiB
    assert rewrites == 1
    ledger = loaded(path)
    for first in range(1, 80):
        ledger.set(long_entries(1, first)[0])
        ledger.flush()
        if first == 1:
            assert rewrites == 2, "how much of the file is of use is not known after a start"
    assert rewrites == 2
    for first in range(80, 160):
        ledger.set(long_entries(1, first)[0])
        ledger.flush()
    assert rewrites == 3


def test_more_entries_than_the_file_can_have_are_refused_with_the_reason(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cgroup.ledger.MAX_LEDGER_BYTES", 1 << 20)
    ledger = written(path, *long_entries(10, 0))
    for entry in long_entries(30, 1):
        ledger.set(entry)
    with pytest.raises(LedgerError, match="more than 1 MiB") as error:
        ledger.flush()
    assert not error.value.is_hanging
    assert list(loaded(path).entries.values()) == long_entries(10, 0)
    for entry in long_entries(30, 1)[15:]:
        ledger.drop(entry, "gone")
    ledger.flush()
    assert loaded(path).entries == ledger.entries


def test_an_empty_ledger_leaves_no_file(path: str) -> None:
    ledger = written(path, ENTRY)
    ledger.drop(ENTRY, "undone")
    ledger.remove_if_empty()
    assert not Path(path).exists()
    ledger.set(ENTRY)
    ledger.flush()
    assert list(loaded(path).entries.values()) == [ENTRY]


def test_a_disk_that_is_full_loses_nothing_that_was_there_and_gets_it_later(path: str) -> None:
    ledger = written(path, *entries(2))
    size = Path(path).stat().st_size
    ledger.set(replace(ENTRY, path="/later"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        with pytest.raises(LedgerError, match="ledger"):
            ledger.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert len(loaded(path).entries) == 2
    ledger.flush()
    assert len(loaded(path).entries) == 3


def test_a_link_in_the_place_of_the_file_is_not_followed(path: str, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    os.symlink(tmp_path / "target", path)
    with pytest.raises(LedgerError):
        loaded(path)
    assert (tmp_path / "target").read_text() == "precious"


def test_a_file_that_could_not_be_read_is_never_written_over(path: str) -> None:
    written(path, ENTRY)
    before = Path(path).read_bytes()
    ledger = ChangeLedger(path, BOOT)  # and load() failed
    ledger.set(replace(ENTRY, path="/other"))
    with pytest.raises(LedgerError, match="could not be read"):
        ledger.flush()
    assert Path(path).read_bytes() == before


def line_of(body: bytes) -> bytes:
    """Return a line with the right checksum, whatever its body is."""
    return b'{"crc":%d,%b\n' % (zlib.crc32(body), body[1:])


def newer_body(version: int = 2, **fields: object) -> bytes:
    """Return a line of a newer version without its checksum, with fields that this one has not."""
    entry = {**msgspec.to_builtins(ENTRY), "unit": "us", "values": {"us": [2]}}
    line = {"v": version, "boot": BOOT, "seq": 9, "op": "set", "entry": entry, "node": "n1"}
    return msgspec.json.encode({**line, **fields})


def newer_line(version: int = 2, **fields: object) -> bytes:
    """Return a line of a newer version."""
    return line_of(newer_body(version, **fields))


def test_the_fields_that_both_versions_have_are_read_of_a_newer_line() -> None:
    line = decode_line(newer_line()[:-1])
    assert line == LedgerLine(v=2, boot=BOOT, seq=9, op="set", entry=ENTRY)


UNREADABLE = {
    "another operation": newer_line(op="moved"),
    "an entry without a field": newer_line(entry={"hierarchy": "v2", "path": "/kubepods/podx"}),
    "a field of another type": newer_line(seq="9"),
    "a path that is not UTF-8": line_of(newer_body().replace(b"/podx", b"/\xff")),
}


@pytest.mark.parametrize("newer", UNREADABLE.values(), ids=UNREADABLE)
def test_after_an_upgrade_and_a_rollback_the_restore_is_whole(path: str, newer: bytes) -> None:
    written(path, *entries(3))
    undone = newer_line(op="undone", entry=msgspec.to_builtins(entries(1)[0]))
    changed = newer_line(entry={**msgspec.to_builtins(entries(2)[1]), "ours": ["2", "3"]})
    with Path(path).open("ab") as file:  # by the newer version
        file.write(undone + newer + changed + newer_line())
    for _ in range(3):  # starts of this version
        ledger = loaded(path)
        assert ledger.problem == ""
        assert not Path(path + QUARANTINE).exists()
        assert set(ledger.entries) == {ENTRY.id, entries(3)[1].id, entries(3)[2].id}
        assert ledger.entries[entries(3)[1].id].own_values == ("2", "3")
        ledger.set(replace(ENTRY, path="/kubepods/pody"))
        ledger.drop(replace(ENTRY, path="/kubepods/pody"), "undone")
        ledger.flush()
    for entry in tuple(ledger.entries.values()):
        ledger.drop(entry, "undone")
    ledger.remove_if_empty()
    assert newer in Path(path).read_bytes()  # for the newer version


def test_lines_of_a_newer_version_outlive_a_file_written_anew(path: str) -> None:
    newer = UNREADABLE["another operation"]
    written(path, ENTRY)
    with Path(path).open("ab") as file:
        file.write(newer + newer_line(op="moved", boot="another boot"))
    ledger = loaded(path)
    for number in range(COMPACT_LEAST * 3):
        ledger.set(replace(ENTRY, own_values=(str(number),)))
        ledger.flush()
    data = Path(path).read_bytes()
    assert data.count(b"\n") <= COMPACT_LEAST * 2
    assert data.count(newer) == data.count(b"moved") == 1
    assert loaded(path).entries == ledger.entries


def test_a_whole_line_of_this_version_that_says_nothing_is_damage() -> None:
    for bad in (newer_line(1, op="moved"), newer_line(1, seq="9"), newer_line(0)):
        assert decode_line(bad[:-1]) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"v":1,"boot":"b","seq":1,"op":"set","entry":{"path":"/\xff\xfe"}}',
        b'{"v":1,"boot":"\xff","seq":1,"op":"set"}',
        b'{"v":1,"x":' + b"[" * 7000 + b"]" * 7000 + b"}",
        b'{"v":' + b"9" * 5000 + b"}",
    ],
    ids=["path", "boot", "nested", "number"],
)
def test_a_right_checksum_makes_no_bad_line_good(body: bytes, path: str) -> None:
    assert decode_line(line_of(body)[:-1]) is None
    written(path, ENTRY)
    with Path(path).open("ab") as file:
        file.write(line_of(body) * 2)
    ledger = loaded(path)
    assert list(ledger.entries.values()) == [ENTRY]
    assert "put aside" in ledger.problem


@pytest.mark.timeout(PATIENCE_S)
def test_a_fifo_in_the_place_of_the_file_holds_nobody_up(path: str) -> None:
    os.mkfifo(path)
    ledger = ChangeLedger(path, BOOT)
    with pytest.raises(LedgerError, match="not a regular file"):
        ledger.load()
    ledger.set(ENTRY)
    with pytest.raises(LedgerError):
        ledger.flush()
    Path(path).unlink()
    ledger = loaded(path)
    os.mkfifo(path)  # after it was read
    ledger.set(ENTRY)
    with pytest.raises(LedgerError):
        ledger.flush()


@pytest.mark.parametrize("path", ["", "kubepods", "/kubepods/../../etc", "/kubepods/a\0b"])
def test_a_path_that_leads_elsewhere_is_not_taken(path: str) -> None:
    line = LedgerLine(v=1, boot=BOOT, seq=1, op="set", entry=replace(ENTRY, path=path))
    assert decode_line(encode_line(line)[:-1]) is None


@given(st.binary(max_size=300))
def test_no_bytes_do_harm(body: bytes) -> None:
    assert decode_line(body) is None
    inner = b'{"a":' + body + b"}"
    assert decode_line(b'{"crc":%d,%b' % (zlib.crc32(inner), inner[1:])) is None
