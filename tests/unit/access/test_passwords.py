"""Basic authentication: right and wrong passwords, and what guesses may cost."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

import bcrypt
import pytest

from agent.access import basic_auth, check_queue
from agent.access.basic_auth import BURST_S, BasicAuthenticator, parse_basic
from agent.access.check_queue import MAX_WAITING_OF_PEER
from agent.access.decision import TooManyChecks
from agent.clock import ManualClock

PASSWORD = b"correct horse"
HASH = bcrypt.hashpw(PASSWORD, bcrypt.gensalt(4)).decode()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_right_password_of_a_user_is_accepted_and_others_are_not() -> None:
    async def test() -> None:
        users = {"alice": HASH, "bob": HASH.replace("$2b$", "$2y$"), "eve": HASH[:-1] + "x"}
        passwords = BasicAuthenticator(users)
        assert await passwords.is_right(b"alice", PASSWORD, "a")
        assert await passwords.is_right(b"bob", PASSWORD, "a")
        assert not await passwords.is_right(b"alice", PASSWORD + b"r", "a")
        assert not await passwords.is_right(b"mallory", PASSWORD, "a")
        assert not await passwords.is_right(b"", b"", "a")
        assert not await passwords.is_right(b"alice", b"a\0b", "a")

    run(test)


def test_of_a_password_only_what_bcrypt_reads_counts() -> None:
    async def test() -> None:
        long = b"a" * 72
        users = {"u": bcrypt.hashpw(long, bcrypt.gensalt(4)).decode()}
        assert await BasicAuthenticator(users).is_right(b"u", long + b"more", "a")

    run(test)


def count_hashes(monkeypatch: pytest.MonkeyPatch, cost_s: float) -> list[bytes]:
    """Replace the hash: count it, and let it cost so much CPU time."""
    hashed: list[bytes] = []

    def compare(password: bytes, against: bytes) -> tuple[bool, float]:
        hashed.append(against)
        return password == PASSWORD, cost_s

    monkeypatch.setattr(basic_auth, "_compare", compare)
    return hashed


def test_a_password_that_was_right_or_wrong_is_not_hashed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = count_hashes(monkeypatch, 0.0)

    async def test() -> None:
        passwords = BasicAuthenticator({"u": HASH})
        for _ in range(3):
            assert await passwords.is_right(b"u", PASSWORD, "a")
            assert not await passwords.is_right(b"u", b"wrong", "a")

    run(test)
    assert len(hashes) == 2


def test_a_name_that_nobody_has_costs_as_much_as_one_that_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = count_hashes(monkeypatch, 0.0)
    slow = bcrypt.hashpw(PASSWORD, bcrypt.gensalt(6)).decode()

    async def test() -> None:
        passwords = BasicAuthenticator({"u": slow})
        assert not await passwords.is_right(b"nobody", PASSWORD, "a")

    run(test)
    (against,) = hashes
    assert against.startswith(slow[:7].encode())
    assert bcrypt.checkpw(PASSWORD, against) is False


def test_guesses_get_a_small_share_of_the_time_and_one_client_does_not_keep_out_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = count_hashes(monkeypatch, BURST_S)  # one uses up the budget
    monkeypatch.setattr(basic_auth, "WAIT_S", 30.0)
    monkeypatch.setattr(check_queue, "MAX_PAUSE_S", 0.001)
    clock = ManualClock()

    async def test() -> None:
        passwords = BasicAuthenticator({"u": HASH}, clock)
        assert not await passwords.is_right(b"u", b"guess", "attacker")
        guesses = [
            asyncio.create_task(passwords.is_right(b"u", b"guess %d" % n, "attacker"))
            for n in range(MAX_WAITING_OF_PEER)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyChecks):
            await passwords.is_right(b"u", b"one more guess", "attacker")
        scraper = asyncio.create_task(passwords.is_right(b"u", PASSWORD, "scraper"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(hashes) == 1  # no time passes, so no other hash is computed
        while not scraper.done():
            clock.advance(5.0)
            await asyncio.sleep(0.001)
        assert scraper.result()
        await asyncio.gather(*guesses)

    run(test)


def test_a_client_that_leaves_does_not_start_a_second_hash_beside_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, most = 0, 0
    release = asyncio.Event()

    async def check(*_: object) -> tuple[bool, float]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return False, 0.0

    monkeypatch.setattr(BasicAuthenticator, "_check", check)

    async def test() -> None:
        passwords = BasicAuthenticator({"u": HASH})
        for n in range(8):
            one = asyncio.create_task(passwords.is_right(b"u", b"%d" % n, "a"))
            for _ in range(5):
                await asyncio.sleep(0)
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
        release.set()

    run(test)
    assert most == 1


@pytest.mark.parametrize(
    ("header", "pair"),
    [
        ("Basic " + base64.b64encode(b"a:b:c").decode(), (b"a", b"b:c")),
        ("basic " + base64.b64encode(b":").decode(), (b"", b"")),
        ("Basic " + base64.b64encode(b"nocolon").decode(), None),
        ("Basic ???", None),
        ("Basic", None),
        ("Bearer abc", None),
        ("", None),
        ("Basic \udcff", None),
    ],
)
def test_a_header_that_is_no_pair_is_none(header: str, pair: tuple[bytes, bytes] | None) -> None:
    assert parse_basic(header) == pair
