"""Settings of `discovery.infofiles`."""

from __future__ import annotations

from typing import Annotated

from agent.errors import BadConfig
from agent.snapshot.settings import SettingRule, VendorSettings


class InfofilesSettings(VendorSettings, frozen=True, kw_only=True):
    """The folder in which another program describes devices for koordlet and for the agent."""

    directory: Annotated[
        str, SettingRule("folder of device-info files; our own file in it is not read")
    ] = "/var/run/koordlet/xpu-device-infos"

    def check(self, *, is_forced: bool = False) -> None:  # noqa: ARG002 - see VendorSettings
        """Raise `BadConfig` for a folder that is not an absolute path."""
        parts = self.directory.split("/")
        if self.directory and (parts[0] or ".." in parts):
            raise BadConfig("discovery.infofiles.directory: must be an absolute path")
