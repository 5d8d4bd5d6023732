"""Settings of `discovery.cambricon`."""

from __future__ import annotations

from typing import Annotated, Self

from msgspec.structs import replace

from agent.errors import BadConfig
from agent.snapshot.settings import SettingRule, VendorSettings

CDI_CHOICES = ("auto", "cdi")


class CambriconSettings(VendorSettings, frozen=True, kw_only=True):
    """Settings of the Cambricon worker and of injection."""

    library_path: Annotated[
        str, SettingRule("libcndev.so itself; empty: the linker's path, then the usual folders")
    ] = ""
    driver_root: Annotated[str, SettingRule("root of the driver's files and of cnmon")] = "/"
    cntopo_file: Annotated[
        str,
        SettingRule("what cntopo wrote of this machine's rings; its pairs are granted together"),
    ] = ""
    smlu_unit_mib: Annotated[
        int,
        SettingRule(
            "unit of an sMLU slice's memory; 0: a hundredth", unit="MiB", low=0, high=1048576
        ),
    ] = 0
    injection: Annotated[
        str,
        SettingRule(
            "how cards get into containers without Cambricon's own runtime", choices=CDI_CHOICES
        ),
    ] = "auto"

    def with_injection(self, mode: str) -> Self:
        """Return the settings by which `edits` injects devices in this mode."""
        return replace(self, injection=mode if mode in CDI_CHOICES else "auto")

    def check(self, *, is_forced: bool = False) -> None:  # noqa: ARG002 - see VendorSettings
        """Raise `BadConfig` for a path that is not absolute."""
        for key in ("library_path", "driver_root", "cntopo_file"):
            path = getattr(self, key)
            if path and not path.startswith("/"):
                raise BadConfig(f"discovery.cambricon.{key}: {path!r} is not an absolute path")
