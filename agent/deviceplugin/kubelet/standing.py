"""How a resource stands with the kubelet, said once each time it becomes another."""

from __future__ import annotations

import logging
from collections.abc import Callable

from agent.deviceplugin.serve.site import Site

log = logging.getLogger(__name__)

WAITING, REGISTERING, REGISTERED = "waiting", "registering", "registered"
WATCHED, REFUSED, CONFLICT = "watched", "refused", "conflict"

# what a person has to do something about, by the reason of its event
_EVENTS = {REFUSED: "DevicePluginRefused", CONFLICT: "DevicePluginConflict"}


class Standing:
    """State, its CamelCase reason, and a message for people; those of `ResourceServed`."""

    def __init__(self, resource: str, site: Site, changed: Callable[[], None]) -> None:
        self.state, self.reason, self.message = WAITING, "", ""
        self._resource = resource
        self._site = site
        self._changed = changed
        self._told = ("", "")

    def say(self, state: str, reason: str = "", message: str = "") -> None:
        """Be in that state; a person hears of a trouble once, until it was over."""
        if (state, reason, message) == (self.state, self.reason, self.message):
            return
        self.state, self.reason, self.message = state, reason, message
        self._changed()
        on_the_way = state in (REGISTERING, REGISTERED) and not reason
        if on_the_way or (state, reason) == self._told:
            return
        self._told = (state, reason)
        fields = {"resource": self._resource, "state": state, "reason": reason, "error": message}
        log.log(logging.INFO if not reason else logging.WARNING, "device_plugin", extra=fields)
        if state in _EVENTS:
            self._site.tell(_EVENTS[state], f"{self._resource}: {message}")
