"""Asks the API server whose a token is, and what a user may read: TokenReview, SubjectAccessReview.

Each is a POST without an object that stays; the agent needs the right to `create` both.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent.access.decision import CheckFailed, TokenUser
from agent.kube.api import ApiClient, ApiRequest, ApiResource
from agent.kube.errors import ApiError
from agent.wire_formats.json_values import JSON_ERRORS

TOKEN_REVIEWS = ApiResource(
    group="authentication.k8s.io", version="v1", plural="tokenreviews", kind="TokenReview"
)
ACCESS_REVIEWS = ApiResource(
    group="authorization.k8s.io",
    version="v1",
    plural="subjectaccessreviews",
    kind="SubjectAccessReview",
)
DEADLINE_S = 3.0
READ = "get"
MAX_GROUPS = 256  # of one user; with more it is refused


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User | None = None
    audiences: list[str] | None = None
    error: str = ""


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus


class AccessReviews:
    """Implements `agent.access.token_auth.AccessReviewer`. Belongs to the loop thread."""

    def __init__(self, api: ApiClient, audiences: Sequence[str] = ()) -> None:
        """`audiences` are those of which a token must have one; empty: the API server's own."""
        self._api = api
        self._audiences = tuple(audiences)

    async def review_token(self, token: str) -> TokenUser | None:
        """Return the owner of a token, `None` if it is not valid; raise `CheckFailed`."""
        spec: dict[str, object] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        body = await self._create(TOKEN_REVIEWS, spec)
        try:
            status = msgspec.json.decode(body, type=_TokenReview).status
        except JSON_ERRORS as error:
            raise CheckFailed("the API server's TokenReview has no status") from error
        user = status.user
        if not status.authenticated or user is None or not user.username:
            return None
        # a server that does not know audiences names none, and accepts tokens of any
        if self._audiences and not set(self._audiences) & set(status.audiences or ()):
            return None
        groups = tuple(user.groups or ())
        if len(groups) > MAX_GROUPS:
            raise CheckFailed(f"the token's user has more than {MAX_GROUPS} groups")
        extra = tuple(sorted((key, tuple(values)) for key, values in (user.extra or {}).items()))
        return TokenUser(name=user.username, uid=user.uid, groups=groups, extra=extra)

    async def review_access(self, user: TokenUser, path: str) -> bool:
        """Return whether a user may read a path; raise `CheckFailed`."""
        spec: dict[str, object] = {
            "user": user.name,
            "groups": list(user.groups),
            "nonResourceAttributes": {"path": path, "verb": READ},
        }
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = {key: list(values) for key, values in user.extra}
        body = await self._create(ACCESS_REVIEWS, spec)
        try:
            status = msgspec.json.decode(body, type=_AccessReview).status
        except JSON_ERRORS as error:
            raise CheckFailed("the API server's SubjectAccessReview has no status") from error
        return status.allowed and not status.denied

    async def _create(self, resource: ApiResource, spec: dict[str, object]) -> bytes:
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": spec}
        request = ApiRequest(
            method="POST",
            path=resource.path(),
            body=msgspec.json.encode(body),
            deadline_s=DEADLINE_S,
        )
        try:
            return (await self._api.call(request)).body
        except ApiError as error:
            raise CheckFailed(str(error)) from error
