"""What a file is to hold, and one write on the way there."""

from __future__ import annotations

import msgspec

from agent.cgroup.values.keys import Key, Value

Target = tuple[str, str]  # cgroup and the key's name


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A value wanted in one cgroup; values in `also` are left alone, they mean the same."""

    cgroup: str  # "/kubepods/…", below the controller's mount
    key: Key
    value: Value
    also: tuple[Value, ...] = ()
    owner: str  # the hook that wants it
    message: str = ""  # for the audit: `set container cpuset to 0-3`

    @property
    def target(self) -> Target:
        """Return what this is about."""
        return self.cgroup, self.key.name

    def met(self, found: Value) -> bool:
        """Say whether what the file holds is as good as what is wanted."""
        return self.key.same(self.value, found) or found in self.also


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One write. `after` is what is in force then, `last` whether that is what was wanted."""

    wish: Wish
    file: str
    text: str
    after: Value
    last: bool
    widens: bool = False  # made before the files of the groups below
