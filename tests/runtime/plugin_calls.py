"""How the runtime asks plug-ins and tells them of events, and what their failures cost."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message as Proto

from proto.gen import nri_plugin_pb2 as nri
from tests.runtime.hub import Hub
from tests.runtime.plugin import UNIMPLEMENTED, Plugin, PluginClosed, Status
from tests.runtime.pods import CreatedContainer, Pod, as_told, as_told_container

P = TypeVar("P", bound=Proto)


class Failed(Exception):
    """The call of the kubelet fails, since a plug-in or what it wanted was refused."""


class Asking(Hub):
    """A hub that asks the plug-ins that want an event, in their order."""

    def _for(self, event: int) -> list[Plugin]:
        bit = 1 << (event - 1)
        return [p for p in self.plugins if p.state == "synchronized" and p.events & bit]

    async def _ask(
        self,
        plugin: Plugin,
        method: str,
        request: Proto,
        answer: type[P],
        missed: list[str],
        *,
        fatal: bool = True,
    ) -> P | None:
        """Ask one plug-in; `None` if it is closed by now: the runtime goes on without it."""
        try:
            return await plugin.call(method, request, answer)
        except PluginClosed as error:
            missed.append(f"{plugin.name}: {error}")
        except Status as error:
            if fatal:
                raise Failed(f"{method}: {error}") from error
        return None

    async def _event(
        self, event: int, pod: Pod, created: CreatedContainer | None, *, fatal: bool = False
    ) -> list[str]:
        """Tell of an event, by its own call or by StateChange; return whom it cost."""
        missed: list[str] = []
        for plugin in self._for(event):
            try:
                await self._tell(plugin, event, pod, created)
            except PluginClosed as error:
                missed.append(f"{plugin.name}: {error}")
            except Status as error:
                if fatal:
                    raise Failed(f"{nri.Event.Name(event)}: {error}") from error
        return missed

    async def _tell(
        self, plugin: Plugin, event: int, pod: Pod, created: CreatedContainer | None
    ) -> None:
        reports = as_told(self.version, pod.message)
        container = created and as_told_container(self.version, created.message)
        if self.version.dedicated and not plugin.by_state_change:
            method = "".join(part.title() for part in nri.Event.Name(event).split("_"))
            about = {"pod": reports} | ({"container": container} if container else {})
            request = getattr(nri, f"{method}Request")(**about)
            try:
                await plugin.call(method, request, getattr(nri, f"{method}Response"))
            except Status as error:
                if error.code != UNIMPLEMENTED:
                    raise
                plugin.by_state_change = True
            else:
                return
        change = nri.StateChangeEvent(
            event=nri.Event.Name(event), pod=reports, container=container or None
        )
        await plugin.call("StateChange", change, nri.Empty)
