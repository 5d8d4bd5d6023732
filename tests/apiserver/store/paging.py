"""Lists: pages cut at one version, continue tokens that grow too old, lists at older versions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from tests.apiserver.refusal import Cause, Refusal, bad_request, expired
from tests.apiserver.schema.kinds import Kind
from tests.apiserver.store.history import Key, Object
from tests.apiserver.store.objects import Store
from tests.apiserver.store.selectors import Matches

INCONSISTENT = -1  # as a version in a token: go on with whatever is there now


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some objects of a list, and where the next ones begin."""

    bodies: tuple[Object, ...]
    version: int
    continue_token: str = ""
    remaining: int | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What a list asks for. `limit` 0 is no limit."""

    namespace: str
    matches: Matches
    selects: bool  # a selector is given: what remains cannot be counted
    limit: int = 0
    version: str = ""
    match: str = ""
    token: str = ""


def read_limit(query: Mapping[str, str]) -> int:
    """Return the limit of a query."""
    text = query.get("limit", "") or "0"
    if not text.isdigit():
        raise bad_request(f"limit: invalid value {text}")
    return int(text)


def read_version(text: str) -> int:
    """Return a resourceVersion as a number; only the server may do so."""
    if not text.isdigit():
        raise bad_request(f"invalid resource version {text!r}")
    return int(text)


def list_page(
    store: Store, kind: Kind, listing: Listing, *, pages_from_cache: bool = False
) -> Page:
    """Return a page. With resourceVersion 0 the limit is ignored, as the watch cache does."""
    with store.lock:
        current = store.history.version
        start: Key | None = None
        limit = listing.limit
        version = current
        if listing.token:
            version, start = _decode(listing.token)
            if version == INCONSISTENT:
                version = current
            elif version < store.history.oldest:
                raise _too_old(start)
        elif listing.version == "0" and not listing.match:
            limit = listing.limit if pages_from_cache else 0
        elif listing.version:
            version = _requested_version(store, listing)
        objects = store.of(kind)
        if version != current:
            objects = store.history.rewind(objects, kind.plural, version)
        return _cut(objects, listing, version, start, limit)


def _requested_version(store: Store, listing: Listing) -> int:
    version, current = read_version(listing.version), store.history.version
    if version > current:
        raise too_new(version, current)
    exact = listing.match == "Exact" or (listing.limit and not listing.match)
    if not exact:  # at least as new
        return current
    if version < store.history.oldest:
        raise expired(f"The provided resource version is too old: {version}")
    return version


def too_new(version: int, current: int) -> Refusal:
    """Return the answer to a version that is not reached yet."""
    message = f"Timeout: Too large resource version: {version}, current: {current}"
    cause = Cause("ResourceVersionTooLarge", "Too large resource version")
    return Refusal(504, "Timeout", message, causes=[cause], retry_after_s=1)


def _cut(
    objects: dict[Key, Object], listing: Listing, version: int, start: Key | None, limit: int
) -> Page:
    chosen: list[Object] = []
    keys = sorted(key for key in objects if not listing.namespace or key[0] == listing.namespace)
    following = [key for key in keys if start is None or key >= start]
    for index, key in enumerate(following):
        if limit and len(chosen) == limit:
            remaining = None if listing.selects else len(following) - index
            token = _encode(version, key)
            return Page(
                bodies=tuple(chosen), version=version, continue_token=token, remaining=remaining
            )
        if listing.matches(objects[key]):
            chosen.append(objects[key])
    return Page(bodies=tuple(chosen), version=version)


def _too_old(start: Key) -> Refusal:
    return expired(
        "The provided continue parameter is too old to display a consistent list result. You can "
        "start a new list without the continue parameter, or use the continue token in this "
        "response to retrieve the remainder of the results. Continuing with the provided token "
        "results in an inconsistent list.",
        continue_token=_encode(INCONSISTENT, start),
    )


def _encode(version: int, key: Key) -> str:
    token: dict[str, Any] = {"v": "meta.k8s.io/v1", "rv": version, "start": "/".join(key)}
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")


def _decode(text: str) -> tuple[int, Key]:
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        namespace, _, name = token["start"].partition("/")
        return int(token["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.DecodeError) as error:
        raise bad_request("continue key is not valid") from error
