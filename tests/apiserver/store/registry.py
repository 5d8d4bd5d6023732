"""Every write to an object: the order of checks is that of a real server."""

from __future__ import annotations

import time
from typing import Any

from tests.apiserver.apply import managers as managed
from tests.apiserver.apply.managers import Conflicts, Manager, Owned
from tests.apiserver.apply.paths import NOBODYS
from tests.apiserver.apply.typed import field_set
from tests.apiserver.refusal import (
    Cause,
    already_exists,
    conflict,
    internal,
    invalid,
    not_found,
    stale,
)
from tests.apiserver.schema.events import check_event
from tests.apiserver.schema.metadata import check_metadata
from tests.apiserver.schema.walk import Findings, walk
from tests.apiserver.store.admission import admit, admit_config
from tests.apiserver.store.objects import Store, now_text
from tests.apiserver.store.strategy import same, spec_changed, strategy, with_system_fields
from tests.apiserver.store.target import Object, Target, Way, Written


class Registry:
    """Creates, replaces, applies and deletes; patches come as the whole object they lead to."""

    def __init__(self, store: Store, *, validation: bool = True) -> None:
        self.store = store
        self.validation = validation
        self.ahead_s = 0.0  # of the time that objects carry, before that of the machine

    def live(self, target: Target) -> Object:
        """Return the stored object, or refuse with 404."""
        result = self.store.of(target.kind).get(target.key)
        if result is None:
            raise not_found(target.kind.plural, target.kind.group, target.name)
        return result

    def create(self, target: Target, sent: Object, way: Way) -> Written:
        """Store a new object, or refuse because there is one."""
        body, dropped = admit(target, sent, way, checked=self.validation and way.checked)
        with self.store.lock:
            if target.key in self.store.of(target.kind):
                raise already_exists(target.kind.plural, target.kind.group, target.name)
            if body["metadata"].get("resourceVersion"):
                raise internal("resourceVersion should not be set on objects to be created")
            return self._commit(target, None, strategy(target, None, body), way, "Update", dropped)

    def replace(self, target: Target, sent: Object, way: Way, *, patch: bool = False) -> Written:
        """Store a new state of an object; with a resourceVersion only if it is the current one."""
        body, dropped = admit(target, sent, way, checked=self.validation and way.checked)
        with self.store.lock:
            live = self.live(target)
            self._check_version(target, live, body, needed=target.kind.custom and not patch)
            new = strategy(target, live, body)
            return self._commit(target, live, new, way, "Update", dropped)

    def apply(self, target: Target, config: Object, way: Way) -> Written:
        """Merge a configuration into an object, or create it; raise the 409 of others' fields."""
        config = admit_config(target, config, checked=self.validation)
        with self.store.lock:
            live = self.store.of(target.kind).get(target.key)
            if live is None and target.subresource:
                raise not_found(target.kind.plural, target.kind.group, target.name)
            if live is None:
                way.may_create()
            self._check_version(target, live, config, needed=False)
            return self._commit(target, live, config, way, "Apply", ())

    def delete(
        self, target: Target, preconditions: dict[str, Any], *, dry_run: bool = False
    ) -> Object:
        """Remove an object, if it is still the one that is meant; return its last state."""
        with self.store.lock:
            live = self.live(target)
            for name, reports in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
                desired, there = preconditions.get(name), live["metadata"][name]
                if desired and desired != there:
                    raise conflict(
                        target.kind.plural,
                        target.kind.group,
                        target.name,
                        f"Precondition failed: {reports} in precondition: {desired}, {reports} in "
                        f"object meta: {there}",
                    )
            return live if dry_run else self.store.delete(target.kind, target.key)

    def _check_version(
        self, target: Target, live: Object | None, body: Object, *, needed: bool
    ) -> None:
        plural, group, name = target.kind.plural, target.kind.group, target.name
        version, uid = body["metadata"].get("resourceVersion"), body["metadata"].get("uid")
        there = live["metadata"] if live is not None else {}
        if version and version != there.get("resourceVersion"):
            raise stale(plural, group, name)
        if uid and uid != there.get("uid"):
            reports = there.get("uid", "")
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {reports}"
            raise conflict(plural, group, name, why)
        if needed and not version and not target.whole:
            message = "Invalid value: 0: must be specified for an update"
            cause = Cause("FieldValueInvalid", message, "metadata.resourceVersion")
            raise invalid(target.kind.kind, group, name, [cause])

    def _commit(
        self,
        target: Target,
        live: Object | None,
        body: Object,
        way: Way,
        operation: str,
        dropped: tuple[str, ...],
    ) -> Written:
        now = now_text(time.time() + self.ahead_s)
        me = Manager(
            name=way.manager,
            operation=operation,
            subresource=target.subresource,
            api_version="" if operation == "Apply" else target.api_version,
        )
        mine = Owned(fields=frozenset(), api_version=target.api_version, time=now)
        base = live if live is not None else {"metadata": {}}
        before = managed.read_managers(base["metadata"])
        result = None
        if operation == "Apply":
            if live is not None and not before:
                before = _before_first_apply(target, live, now)
            try:
                new, after = managed.apply(
                    target.shape, base, body, before, me, mine, force=way.force
                )
            except Conflicts as clash:
                raise clash.refusal() from None
            new, result = self._with_defaults(target, strategy(target, live, new))
        else:
            new = body
            after = managed.update(target.shape, base, new, before, me, mine)
            if _reset(body):
                after = {}
        new = with_system_fields(target, live, new, now)
        if self.validation and way.checked:
            _validate(target, live, new, result)
        return self._store(target, live, new, after, way, dropped)

    def _with_defaults(self, target: Target, new: Object) -> tuple[Object, Findings]:
        """Return a merged object with defaults, and which rules of its schema it breaks."""
        findings = Findings()
        records = walk(target.shape, new, "", findings) if self.validation else new
        assert isinstance(records, dict)
        return records, findings

    def _store(
        self,
        target: Target,
        live: Object | None,
        new: Object,
        after: dict[Manager, Owned],
        way: Way,
        dropped: tuple[str, ...],
    ) -> Written:
        new["metadata"].pop("managedFields", None)
        if after:
            new["metadata"]["managedFields"] = managed.write_managers(after)
        if live is not None:
            if same(live, new):
                return Written(body=live, changed=False, dropped=dropped)
            if spec_changed(target, live, new):
                new["metadata"]["generation"] = live["metadata"].get("generation", 1) + 1
        if way.dry_run:
            return Written(body=new, created=live is None, changed=False, dropped=dropped)
        stored = self.store.put(target.kind, target.key, new)
        return Written(body=stored, created=live is None, dropped=dropped)


def _validate(target: Target, live: Object | None, new: Object, findings: Findings | None) -> None:
    """Refuse what breaks a rule; `found` is what a walk of the object found, if there was one."""
    if findings is None:
        findings = Findings()
        walk(target.shape, new, "", findings)
    causes = findings.causes
    if not causes:  # every part has the type that the rules expect
        causes = check_metadata(new["metadata"])
        if target.kind.plural == "events":
            causes += check_event(target.group, new, live)
    if causes:
        raise invalid(target.kind.kind, target.kind.group, target.name, causes)


def _before_first_apply(target: Target, live: Object, now: str) -> dict[Manager, Owned]:
    who = Manager(name="before-first-apply", operation="Update", api_version=target.api_version)
    fields = frozenset(field_set(target.shape, live)) - NOBODYS
    return {who: Owned(fields=fields, api_version=target.api_version, time=now)}


def _reset(body: Object) -> bool:
    return body["metadata"].get("managedFields") in ([], [{}])
