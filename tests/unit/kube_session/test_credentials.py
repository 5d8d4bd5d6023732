"""The token of a pod."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.clock import ManualClock
from agent.kube.credentials import TokenFile
from agent.kube.errors import Unauthorized


def header(tokens: TokenFile) -> str | None:
    return asyncio.run(tokens.authorization())


def test_a_token_is_sent_without_the_ends_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" abc.def \n")
    assert header(TokenFile(str(tmp_path / "token"), ManualClock())) == "Bearer abc.def"


def test_a_rotated_token_is_taken_within_a_minute_and_no_sooner(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", ManualClock()
    file.write_text("one")
    tokens = TokenFile(str(file), clock)
    assert header(tokens) == "Bearer one"
    file.write_text("two")
    clock.advance(59)
    assert header(tokens) == "Bearer one"
    clock.advance(1)
    assert header(tokens) == "Bearer two"


def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    tokens = TokenFile(str(file), ManualClock())
    assert header(tokens) == "Bearer one"
    file.write_text("two")
    tokens.expire()
    assert header(tokens) == "Bearer two"


def test_a_token_renewed_by_a_symlink_is_followed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"..{name}").mkdir()
        (tmp_path / f"..{name}" / "token").write_text(name)
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "token").symlink_to("..data/token")
    clock = ManualClock()
    tokens = TokenFile(str(tmp_path / "token"), clock)
    assert header(tokens) == "Bearer one"
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").rename(tmp_path / "..data")
    clock.advance(60)
    assert header(tokens) == "Bearer two"


@pytest.mark.parametrize(
    "content", [None, b"", b" \n", b"two words", b"x\x00y", b"caf\xc3\xa9", b"x" * 70_000, b"a\nb"]
)
def test_what_is_no_token_leaves_the_one_before_and_is_counted(
    tmp_path: Path, content: bytes | None
) -> None:
    file, clock = tmp_path / "token", ManualClock()
    file.write_text("one")
    tokens = TokenFile(str(file), clock)
    assert header(tokens) == "Bearer one"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    clock.advance(60)
    assert header(tokens) == "Bearer one"
    assert tokens.read_errors == 1
    assert tokens.problem.startswith(f"{file}: ")
    file.write_text("three")
    clock.advance(60)
    assert header(tokens) == "Bearer three"
    assert tokens.problem == ""


def test_without_any_token_ever_there_is_an_error_that_says_where(tmp_path: Path) -> None:
    tokens = TokenFile(str(tmp_path / "token"), ManualClock())
    with pytest.raises(Unauthorized, match="ENOENT") as caught:
        header(tokens)
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "token").write_text("late")
    assert header(tokens) == "Bearer late"


def test_a_bad_token_is_never_repeated(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("top secret")
    tokens = TokenFile(str(tmp_path / "token"), ManualClock())
    with pytest.raises(Unauthorized) as caught:
        header(tokens)
    assert "secret" not in f"{caught.value} {tokens.problem}"
