"""What an error of the API server means for the event that was told, and for all others."""

from __future__ import annotations

import enum

from agent.kube.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    UnsupportedMedia,
)

TERMINATING = "NamespaceTerminating"  # reason of a cause; no right is lacking


class Verdict(enum.Enum):
    """What to do next."""

    TOLD = "told"  # the object is there: an answer was lost
    RENEW = "renew"  # its object is gone: write a new one
    REFUSED = "refused"  # this event can never be told; the others can
    OFF = "off"  # no event can be told until somebody grants the right
    LATER = "later"  # nothing is wrong with the event


def verdict(error: ApiError, *, creating: bool, of_pod: bool) -> Verdict:
    """Judge an error of a POST (`creating`) or of a PATCH; `of_pod`: in a namespace of users.

    A namespace has quotas and guards of its own, whose answer is 403 too: what one of those
    forbids is no reason to tell nothing of the node.
    """
    if isinstance(error, Forbidden):
        ending = any(cause.reason == TERMINATING for cause in error.causes)
        return Verdict.REFUSED if ending or of_pod else Verdict.OFF
    if isinstance(error, NotFound):  # of a POST: the namespace
        return Verdict.REFUSED if creating else Verdict.RENEW
    if isinstance(error, (Invalid, TooLarge, UnsupportedMedia)):
        return Verdict.REFUSED
    if isinstance(error, Conflict) and creating:
        return Verdict.TOLD
    return Verdict.LATER
