"""Bearer tokens at a strict API server: whose they are, what is remembered, what is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from agent.access import token_auth
from agent.access.decision import CheckFailed, TokenUser, TooManyChecks
from agent.access.token_auth import (
    ALLOWED_S,
    BURST_REVIEWS,
    KNOWN_TOKEN_S,
    MAX_REMEMBERED,
    UNKNOWN_TOKEN_S,
    TokenAuthenticator,
    TokenVerdict,
    parse_bearer,
)
from agent.clock import ManualClock, SystemClock
from agent.kube.access_reviews import ACCESS_REVIEWS, TOKEN_REVIEWS, AccessReviews
from agent.kube.endpoint import find_api_target
from agent.kube.session import open_session
from tests.apiserver import ApiServer, Fault, Rule

SCRAPER = "system:serviceaccount:monitoring:prometheus"
READ_METRICS = Rule(non_resource_urls=("/metrics",), verbs=("get",))
METRICS = "/metrics"
REVIEWS = Rule(
    api_groups=("authentication.k8s.io", "authorization.k8s.io"),
    resources=("tokenreviews", "subjectaccessreviews"),
    verbs=("create",),
)


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer() as one:
        one.permit("system:serviceaccounts:monitoring", READ_METRICS)
        one.permit("somebody", Rule(non_resource_urls=("/health*",), verbs=("get",)))
        yield one


def run(
    api: ApiServer,
    test: Callable[[TokenAuthenticator], Awaitable[None]],
    clock: ManualClock | None = None,
    audiences: tuple[str, ...] = (),
) -> None:
    async def bounded() -> None:
        environment = {"KUBECONFIG": str(api.agent_kubeconfig)}
        session = await open_session(find_api_target(environment), SystemClock(), environment)
        try:
            reviews = AccessReviews(session, audiences)
            await test(TokenAuthenticator(reviews, clock or SystemClock()))
        finally:
            await session.close()

    api.clear_requests()
    asyncio.run(asyncio.wait_for(bounded(), 60))


def review_paths(api: ApiServer) -> list[str]:
    return [logged.resource for logged in api.requests(verb="create")]


def test_the_owner_of_a_token_needs_the_right_to_get_the_path(api: ApiServer) -> None:
    api.admit("scraper", SCRAPER)
    api.admit("other", "somebody")

    async def test(tokens: TokenAuthenticator) -> None:
        verdict = await tokens.verdict("scraper", METRICS, "a")
        assert verdict.user is not None
        assert (verdict.user.name, verdict.is_allowed) == (SCRAPER, True)
        assert "system:serviceaccounts:monitoring" in verdict.user.groups
        refused = await tokens.verdict("other", METRICS, "a")
        assert refused.user is not None
        assert not refused.is_allowed
        assert await tokens.verdict("invented", METRICS, "a") == TokenVerdict(None)

    run(api, test)


def test_results_are_remembered_for_a_time(api: ApiServer) -> None:
    api.admit("scraper", SCRAPER)
    clock = ManualClock()

    async def test(tokens: TokenAuthenticator) -> None:
        for _ in range(3):
            assert (await tokens.verdict("scraper", METRICS, "a")).is_allowed
            assert (await tokens.verdict("invented", METRICS, "a")).user is None
        assert review_paths(api) == ["tokenreviews", "subjectaccessreviews", "tokenreviews"]
        api.clear_requests()
        clock.advance(UNKNOWN_TOKEN_S)
        api.admit("invented", SCRAPER)
        assert (await tokens.verdict("invented", METRICS, "a")).is_allowed
        api.forget("scraper")
        assert (await tokens.verdict("scraper", METRICS, "a")).is_allowed
        clock.advance(KNOWN_TOKEN_S)
        assert (await tokens.verdict("scraper", METRICS, "a")).user is None
        assert review_paths(api) == [
            "tokenreviews",
            "tokenreviews",
        ]  # the right is remembered longer
        clock.advance(ALLOWED_S)
        assert (await tokens.verdict("invented", METRICS, "a")).is_allowed
        assert review_paths(api)[2:] == ["tokenreviews", "subjectaccessreviews"]

    run(api, test, clock)
    api.forget("invented")


def test_a_token_of_another_audience_is_not_accepted(api: ApiServer) -> None:
    api.admit("ours", SCRAPER, ["xpu-agent"])
    api.admit("vault", SCRAPER, ["vault"])
    api.admit("scraper", SCRAPER)

    async def with_audience(tokens: TokenAuthenticator) -> None:
        assert (await tokens.verdict("ours", METRICS, "a")).is_allowed
        for token in ("vault", "scraper"):
            assert (await tokens.verdict(token, METRICS, "a")).user is None

    async def without(tokens: TokenAuthenticator) -> None:
        assert (await tokens.verdict("scraper", METRICS, "a")).is_allowed
        assert (await tokens.verdict("vault", METRICS, "a")).user is None

    run(api, with_audience, audiences=("xpu-agent",))
    run(api, without)


def test_an_api_server_that_knows_no_audiences_accepts_no_token_for_one(api: ApiServer) -> None:
    api.admit("scraper", SCRAPER)
    answer = f'{{"status": {{"authenticated": true, "user": {{"username": "{SCRAPER}"}}}}}}'

    async def test(tokens: TokenAuthenticator) -> None:
        api.faults.add(Fault(resource=TOKEN_REVIEWS.plural, status=201, raw=answer))
        try:
            assert (await tokens.verdict("scraper", METRICS, "a")).user is None
        finally:
            api.faults.clear()

    run(api, test, audiences=("xpu-agent",))


@pytest.mark.parametrize(
    "fault",
    [
        Fault(resource=TOKEN_REVIEWS.plural, status=500),
        Fault(resource=TOKEN_REVIEWS.plural, reset=True),
        Fault(resource=TOKEN_REVIEWS.plural, status=403),
        Fault(resource=ACCESS_REVIEWS.plural, status=429),
        Fault(resource=ACCESS_REVIEWS.plural, status=201, raw="<html>"),
        Fault(
            resource=TOKEN_REVIEWS.plural, status=201, raw='{"status": {"authenticated": "yes"}}'
        ),
    ],
    ids=lambda fault: f"{fault.resource} {fault.status}",
)
def test_without_an_answer_of_the_api_server_there_is_no_verdict_and_none_is_remembered(
    api: ApiServer, fault: Fault
) -> None:
    api.admit("scraper", SCRAPER)

    async def test(tokens: TokenAuthenticator) -> None:
        api.faults.add(fault)
        try:
            with pytest.raises(CheckFailed):
                await tokens.verdict("scraper", METRICS, "a")
        finally:
            api.faults.clear()
        assert (await tokens.verdict("scraper", METRICS, "a")).is_allowed

    run(api, test)


def test_an_api_server_that_does_not_answer_is_not_waited_for(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.admit("scraper", SCRAPER)
    monkeypatch.setattr(token_auth, "WAIT_S", 0.2)

    async def test(tokens: TokenAuthenticator) -> None:
        api.faults.add(Fault(resource=TOKEN_REVIEWS.plural, hang=True))
        try:
            with pytest.raises(TooManyChecks):
                await tokens.verdict("scraper", METRICS, "a")
        finally:
            api.faults.clear()

    run(api, test)


class CountingReviewer:
    """Knows no token."""

    def __init__(self) -> None:
        self.count = 0

    async def review_token(self, token: str) -> TokenUser | None:
        self.count += 1
        return TokenUser(name=token) if token == "good" else None

    async def review_access(self, user: TokenUser, path: str) -> bool:  # noqa: ARG002 - as its Protocol
        return True


def test_invented_tokens_cost_the_api_server_little_and_displace_no_valid_one() -> None:
    reviewer, clock = CountingReviewer(), ManualClock()

    async def test() -> None:
        tokens = TokenAuthenticator(reviewer, clock)
        assert (await tokens.verdict("good", METRICS, "a")).is_allowed
        asking = [
            asyncio.create_task(tokens.verdict(f"bad {n}", METRICS, f"peer {n // 4}"))
            for n in range(4 * MAX_REMEMBERED)
        ]
        for _ in range(200):
            await asyncio.sleep(0)
        assert reviewer.count <= BURST_REVIEWS + 2  # while no time passes
        for task in asking:
            task.cancel()
        refused = [
            one
            for one in await asyncio.gather(*asking, return_exceptions=True)
            if isinstance(one, TooManyChecks)
        ]
        assert len(refused) > 3 * MAX_REMEMBERED
        count = reviewer.count
        assert (await tokens.verdict("good", METRICS, "b")).is_allowed
        assert reviewer.count == count

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer a.b.c", "a.b.c"),
        ("bearer  a ", "a"),
        ("Bearer a b", None),
        ("Bearer ä", None),
        ("Bearer", None),
        ("Basic a", None),
        ("Bearer " + "a" * 9000, None),
    ],
)
def test_a_header_that_is_no_token_is_none(header: str, token: str | None) -> None:
    assert parse_bearer(header) == token
