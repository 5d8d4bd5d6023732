"""Settings of `discovery.ascend`."""

from __future__ import annotations

from typing import Annotated, Self

from msgspec.structs import replace

from agent.snapshot.settings import SettingRule, VendorSettings

CDI_CHOICES = ("auto", "cdi")


class AscendSettings(VendorSettings, frozen=True, kw_only=True):
    """Settings of the Ascend worker and of injection."""

    library_path: Annotated[
        str, SettingRule("libdcmi.so itself; empty: looked for in the usual folders")
    ] = ""
    library_dirs: Annotated[
        tuple[str, ...], SettingRule("folders of the driver's libraries, which libdcmi.so needs")
    ] = ("/usr/local/Ascend/driver/lib64/driver", "/usr/local/Ascend/driver/lib64/common")
    driver_root: Annotated[str, SettingRule("root below which the driver's usual folders are")] = (
        "/"
    )
    sample_interval_s: Annotated[
        float,
        SettingRule(
            "chips are sampled as often; from 10 on over a full second", unit="s", low=1, high=60
        ),
    ] = 5.0
    network_tool_interval_s: Annotated[
        float,
        SettingRule(
            "hccn_tool is asked as often for links and optical modules; 0: never",
            unit="s",
            low=0,
            high=3600,
        ),
    ] = 60.0
    fault_codes: Annotated[
        str, SettingRule("faultCode.json that replaces the maker's classes of faults; empty: those")
    ] = ""
    injection: Annotated[
        str,
        SettingRule(
            "how chips get into containers without Ascend's own runtime", choices=CDI_CHOICES
        ),
    ] = "auto"
    network_is_health: Annotated[
        bool, SettingRule("a chip whose network port fails is out of service", maturity="beta")
    ] = False
    forget_after_s: Annotated[
        float,
        SettingRule(
            "a chip that left its bus stays listed that long", unit="s", low=0, high=604800
        ),
    ] = 86400.0

    def with_injection(self, mode: str) -> Self:
        """Return the settings by which `edits` injects devices in this mode."""
        return replace(self, injection=mode if mode in CDI_CHOICES else "auto")

    @property
    def library_folders(self) -> tuple[str, ...]:
        """Folders that the dynamic linker searches first in the worker."""
        return self.library_dirs
