"""Settings of `discovery.fake`."""

from __future__ import annotations

from typing import Annotated

from agent.errors import BadConfig
from agent.snapshot.settings import SettingRule, VendorSettings


class FakeSettings(VendorSettings, frozen=True, kw_only=True):
    """Devices that do not exist, for demonstrations and scale tests."""

    file: Annotated[str, SettingRule("YAML file that describes them; empty: none")] = ""

    def check(self, *, is_forced: bool = False) -> None:
        """Raise `BadConfig` if the vendor is switched on without a file."""
        if is_forced and not self.file:
            raise BadConfig("discovery.vendors.fake: on, but discovery.fake.file names no devices")

    @property
    def is_complete(self) -> bool:
        """Whether there is a file: only few hosts have one."""
        return bool(self.file)
