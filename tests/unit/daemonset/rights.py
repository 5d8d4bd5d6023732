"""What an account used of its rights, against what it was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.apiserver.log import Logged
from tests.apiserver.rbac import Rule

CREATED = 201


class Right(NamedTuple):
    """One verb on one resource, as RBAC names them: `nodemetrics/status`."""

    group: str
    resource: str
    verb: str


def verbs_used(requests: Iterable[Logged], user: str) -> frozenset[Right]:
    """Return the rights that a user's requests need; paths that are no resource need none.

    A patch that makes the object needs the right to create it besides.
    """
    used = set()
    for logged in requests:
        if logged.user != user or not logged.resource:
            continue
        used.add(Right(logged.group, logged.resource_path, logged.verb))
        if logged.verb == "patch" and logged.status == CREATED:
            used.add(Right(logged.group, logged.resource_path, "create"))
    return frozenset(used)


def verbs_granted(rules: Iterable[Rule]) -> frozenset[Right]:
    """Return the rights that rules give, one by one; a wildcard stays what it is."""
    return frozenset(
        Right(group, resource, verb)
        for rule in rules
        for group in rule.api_groups
        for resource in rule.resources
        for verb in rule.verbs
    )


class Difference(NamedTuple):
    """Rights that were used and not granted, and those granted that nobody used."""

    missing: tuple[Right, ...]
    unused: tuple[Right, ...]


def compare(used: frozenset[Right], rights: frozenset[Right]) -> Difference:
    """Return how far the two differ; both empty: the rights are the least."""
    return Difference(tuple(sorted(used - rights)), tuple(sorted(rights - used)))
