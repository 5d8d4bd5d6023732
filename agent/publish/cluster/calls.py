"""The calls about one object; what each is answered is what is known of the object then."""

from __future__ import annotations

from agent.kube.apply.requests import Target, decode_object
from agent.kube.base import Request
from agent.kube.errors import NotFound
from agent.kube.session.answers import http_date_s
from agent.publish.base import Desired
from agent.publish.cluster.decide import Clean, Remove, Reown, Write
from agent.publish.cluster.intent import resource_of
from agent.publish.cluster.known import Known
from agent.publish.cluster.site import Site

NO_OBJECT = "NotFound"  # the reason of a 404 for an object; where a resource lacks there is none


class Calls:
    """Makes one call at a time. A failed one is an `ApiError`, an odd answer a `ParseError`."""

    def __init__(self, first: Desired, site: Site, known: Known) -> None:
        self._api = site.api
        self._known = known
        self.target = Target(
            resource=resource_of(first),
            name=first.name,
            subresource="status" if first.status_only else "",
            deadline_s=site.pace.deadline_s,
        )

    async def read(self, desired: Desired, *, again: bool) -> None:
        """Read the object; `again`: find out who wrote it since it was last seen."""
        before = self._known.sight if again else None
        self._known.begin_read()
        try:
            await self._take(self.target.read())
        except NotFound as error:
            if error.reason != NO_OBJECT and not desired.absent:
                raise
            self._known.see(None, None)
            return
        self._known.meet(before, self.target.subresource)

    async def write(self, step: Write | Reown | Clean) -> bool:
        """Write; return whether the object was still there."""
        absent = self._known.sight is None or self._known.sight.stored is None
        try:
            await self._take(self._request(step))
        except NotFound as error:
            if absent or error.reason != NO_OBJECT:
                raise
            self._known.forget()
            return False
        return True

    async def remove(self, step: Remove) -> bool:
        """Delete the object; return whether it was still there."""
        try:
            await self._api.call(self.target.delete(step.uid, step.version))
        except NotFound:
            return False
        finally:
            self._known.forget()
        self._known.see(None, None)
        return True

    def _request(self, step: Write | Reown | Clean) -> Request:
        if isinstance(step, Reown):
            return self.target.merge(step.patch, subresource="")
        if isinstance(step, Clean):
            return self.target.merge(step.patch)
        if step.how == "apply":
            return self.target.apply(step.body, force=step.force)
        if step.how == "merge":
            return self.target.merge(step.body)
        return self.target.create(step.body)

    async def _take(self, request: Request) -> None:
        """Make a call whose answer is the object."""
        response = await self._api.call(request)
        server_s = http_date_s(response.headers.get("date", ""))
        self._known.see(decode_object(response.body), server_s)
