from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording import format as parse_module
from agent.recording.format import FIRST_LINE, format_recording, parse_recording
from agent.recording.tree import RecordingError, TreeFiles
from tests.unit.recording.trees import trees

HEAD = f"{FIRST_LINE}\nkernel: 6.1\n\n"


@pytest.mark.parametrize(
    ("body", "line", "why"),
    [
        ("[/sys", 4, "no directory"),
        ("[sys]", 4, "no directory"),
        ("[/sys/../etc]", 4, "no directory"),
        ("[/sys//x]", 4, "no directory"),
        ("[/a]\nb = 1\n[/a/b]", 6, "no directory"),
        ("[/a]\nb", 5, "no known kind"),
        ("[/a]\n\nb ? 1", 6, "no known kind"),
        ("[/a]\n= 1", 5, "no known kind"),
        ("[/a]\nb ! EWHAT", 5, "no errno"),
        ("[/a]\nb ! errorcode", 5, "no errno"),
        ("[/a]\nb ! -1", 5, "no errno"),
        ("[/a]\nb @ 1", 5, "no device number"),
        ("[/a]\nb @ 1:99999999", 5, "no device number"),
        ("[/a]\nb |", 5, "no lines follow"),
        ("[/a]\nb x", 5, "no size"),
        ("[/a]\nb x 9999999", 5, "too large"),
        ("[/a]\nb x 2\n|0000 010203", 5, "bad row"),
        ("[/a]\nb x 2\n|0000 0g", 5, "bad row"),
        ("[/a]\nb x 2\n|zz", 5, "bad row"),
        ("[/a]\n|stray", 5, "no known kind"),
        ("[/a]\nb = 1\nb -> x", 6, "came before"),
        ("[/a]\n.. = 1", 5, "came before"),
        ("[/a]\n%2e%2e = 1", 5, "came before"),
        ("[/a]\nb%2Fc = 1", 5, "a slash"),
        ("stray\n[/a]", 4, "neither key nor section"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(body: str, line: int, why: str) -> None:
    with pytest.raises(RecordingError, match=why) as caught:
        parse_recording((HEAD + body).encode())
    assert f"line {line}:" in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\n", b"PK\x03\x04", b"xpu-agent host recording 2\n"])
def test_what_is_no_recording_is_refused_at_its_first_line(data: bytes) -> None:
    with pytest.raises(RecordingError, match="line 1"):
        parse_recording(data)


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(RecordingError, match="line 5: not UTF-8"):
        parse_recording(HEAD.encode() + b"[/a]\nb = \xff")


def test_a_recording_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse_module, "MAX_RECORDING_BYTES", 100)
    with pytest.raises(RecordingError, match="100 bytes"):
        parse_recording(HEAD.encode() + bytes(100))


def test_remarks_blank_lines_and_unknown_keys_are_passed_over() -> None:
    text = f"{FIRST_LINE}\n# who\nfuture: x\n\n[/a]\n# why\n\nb = 1\n"
    recording = parse_recording(text.encode())
    assert recording.files.read("/a/b") == b"1\n"
    assert recording.header == {"future": "x"}


@pytest.mark.parametrize(
    ("value", "wall_s"),
    [("2026-11-21T03:56:23Z", 1795233383.0), ("yesterday", None), ("", None)],
)
def test_the_time_of_recording_is_known_or_absent(value: str, wall_s: float | None) -> None:
    assert parse_recording(f"{FIRST_LINE}\nrecorded: {value}\n".encode()).wall_s == wall_s
    assert parse_recording(f"{FIRST_LINE}\n".encode()).wall_s is None


@given(trees, st.data())
def test_a_cut_recording_is_a_smaller_one_or_an_error(tree: TreeFiles, data: st.DataObject) -> None:
    text = format_recording(tree, {}).encode()
    try:
        parse_recording(text[: data.draw(st.integers(0, len(text)))])
    except RecordingError as error:
        assert "line" in str(error)  # noqa: PT017  # either outcome is right


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_never_crashes_the_parser(garbage: bytes) -> None:
    for data in (garbage, HEAD.encode() + garbage, HEAD.encode() + b"[/a]\nb " + garbage):
        try:
            parse_recording(data)
        except RecordingError as error:
            assert "line" in str(error)  # noqa: PT017  # either outcome is right
