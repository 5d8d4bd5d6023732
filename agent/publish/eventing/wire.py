"""An event as `events.k8s.io/v1` has it: within every limit that its validation knows."""

from __future__ import annotations

import hashlib
import math
import re
import time

from agent.kube.resources import EVENTS
from agent.publish.eventing.event import COMPONENT, Dict, Event, regarding
from agent.publish.wire.sanitise import MAX_MESSAGE, plain, reason

MAX_NOTE_BYTES = 1024
MAX_NAME = 253
MAX_INSTANCE = 128
ACTION = "Observe"  # required; what the agent did when it had something to tell

_YEAR_10000_S = 253_402_300_800
_NOT_NAME = re.compile(r"[^a-z0-9.-]+")


def micro_time(wall_s: float) -> str:
    """Format Unix seconds as `metav1.MicroTime`: UTC, exactly six digits, `Z`.

    What no calendar holds is the epoch.
    """
    known = math.isfinite(wall_s) and 0 <= wall_s < _YEAR_10000_S - 1
    seconds, micros = divmod(round((wall_s if known else 0.0) * 1_000_000), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06d}Z"


def note(message: str) -> str:
    """Return the text within its limit of bytes, cut between two characters."""
    text = plain(message, MAX_MESSAGE)
    return text.encode()[:MAX_NOTE_BYTES].decode("utf-8", "ignore")


def object_name(event: Event, node_name: str, first_s: float) -> str:
    """Return the name of the object: the same for one series of one agent, else another.

    A write that was done though its answer was lost is so found again.
    """
    identity = "\0".join((node_name, *event.series, micro_time(first_s)))
    digest = hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:16]
    about = _NOT_NAME.sub("-", event.pod.name if event.pod is not None else node_name)
    about = about[: MAX_NAME - len(digest) - 1].strip("-.")
    # each part between dots begins and ends with a letter or a digit
    about = re.sub(r"[-.]*\.[-.]*", ".", about)
    return f"{about}.{digest}" if about else digest


def series(count: int, first_s: float, last_s: float) -> Dict:
    """Return what a repeat changes; the last time is never before the first."""
    return {"count": count, "lastObservedTime": micro_time(max(first_s, last_s))}


def new_object(
    event: Event, node_name: str, uid: str, count: int, first_s: float, last_s: float
) -> Dict:
    """Return the whole object; with its series, where it was seen more than once already."""
    body: Dict = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {
            "name": object_name(event, node_name, first_s),
            "namespace": event.namespace,
        },
        "eventTime": micro_time(first_s),
        "type": event.type,
        "reason": reason(event.reason),
        "action": ACTION,
        "note": note(event.message),
        "regarding": regarding(event, node_name, uid),
        "reportingController": COMPONENT,
        "reportingInstance": node_name[:MAX_INSTANCE],
    }
    if count > 1:
        body["series"] = series(count, first_s, last_s)
    return body
