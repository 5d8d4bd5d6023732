"""Grants of all pods of this node after they were checked, as the snapshot has them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from agent.model.grant.granted import Grant


class PodGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod was granted; a refused grant is empty and says why.

    `awaits_requests`: neither the API server nor the kubelet lists the pod yet. Containers that
    run keep their devices; a new container of the pod gets none.
    """

    uid: str
    namespace: str = ""
    name: str = ""
    grant: Grant = Grant()
    refusal: str = ""  # CamelCase; empty: it holds
    message: str = ""
    awaits_requests: bool = False


def _nobody() -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({})


def _none() -> Mapping[str, PodGrant]:
    return MappingProxyType({})


class GrantsView(msgspec.Struct, frozen=True, kw_only=True):
    """By pod uid; pods that were granted nothing are not in it."""

    pods: Mapping[str, PodGrant] = msgspec.field(default_factory=_none)
    # uids of the pods whose grants hold something of a device, by Device.key, who came first first
    held: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=_nobody)
    looked: frozenset[str] = frozenset()  # pod uids and sandbox ids that were looked at for it
