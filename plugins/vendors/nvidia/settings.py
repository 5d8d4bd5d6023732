"""Settings of `discovery.nvidia`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Self

import msgspec
from msgspec.structs import replace

from agent.errors import BadConfig
from agent.snapshot.settings import SettingRule, VendorSettings
from agent.snapshot.vendor import SWITCH_CHOICES
from plugins.vendors.nvidia.health.xid import MAX_XID, XidRules

PRELOAD_CHOICES = ("env", "file")
PARTITION_POLICIES = ("Prefer", "Honor")


class XidSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Xids whose class differs on this node from the catalogue."""

    ignore: Annotated[
        tuple[str, ...], SettingRule("Xid numbers that never change a card's health")
    ] = ()
    fatal: Annotated[
        tuple[str, ...], SettingRule("Xid numbers that take a card out of service")
    ] = ()


class NvidiaSettings(VendorSettings, frozen=True, kw_only=True):
    """Settings of the NVIDIA worker and of injection."""

    library_dirs: Annotated[
        tuple[str, ...],
        SettingRule(
            "folders searched for libnvidia-ml.so.1; empty: the usual ones below driver_root"
        ),
    ] = ()
    driver_root: Annotated[
        str, SettingRule("root of the driver's files; /run/nvidia/driver with a container")
    ] = "/"
    forget_after_s: Annotated[
        float,
        SettingRule(
            "a card that left its bus stays listed that long", unit="s", low=0, high=604800
        ),
    ] = 86400.0
    partition_policy: Annotated[
        str,
        SettingRule(
            "whether pods get only cards that the partition table lists", choices=PARTITION_POLICIES
        ),
    ] = "Prefer"
    partition_bandwidth: Annotated[
        bool,
        SettingRule("put the NVLink bandwidth of each partition into the table", maturity="beta"),
    ] = False
    fabric_must_be_ready: Annotated[
        str,
        SettingRule(
            "an NVLink fabric that is not ready takes the cards out of service",
            choices=SWITCH_CHOICES,
        ),
    ] = "auto"
    xids: Annotated[XidSettings, SettingRule("Xid errors")] = XidSettings()
    upstream_compatible: Annotated[
        bool,
        SettingRule(
            "as koordlet does: take every Xid but 13, 31, 43, 45, 68 and 109 for fatal, and name "
            "cards to containers by minor"
        ),
    ] = False
    injection: Annotated[
        str,
        SettingRule("how cards get into containers", choices=("auto", "cdi", "env", "nodes")),
    ] = "auto"
    preload: Annotated[
        str,
        SettingRule(
            "how containers load HAMi-core: LD_PRELOAD or /etc/ld.so.preload",
            choices=PRELOAD_CHOICES,
        ),
    ] = "env"
    region: Annotated[
        bool, SettingRule("let HAMi-core count a container's use of cards where we read it")
    ] = True

    def with_injection(self, mode: str) -> Self:
        """Return the settings by which `edits` injects devices in this mode."""
        return replace(self, injection=mode)

    def check(self, *, is_forced: bool = False) -> None:  # noqa: ARG002 - see VendorSettings
        """Refuse what is no number of an Xid."""
        if self.xids != XidSettings():
            read_xid_rules(self, {})

    @property
    def library_folders(self) -> tuple[str, ...]:
        """Folders that the dynamic linker searches first in the worker."""
        return self.library_dirs


def read_xid_rules(settings: NvidiaSettings, environment: Mapping[str, str]) -> XidRules:
    """Read `xids` and `upstream_compatible`; raises `BadConfig`, which names the key.

    Two variables of NVIDIA's device plug-in add to `xids`, which has precedence:
    DP_DISABLE_HEALTHCHECKS holds `all`, `xids` or numbers; DP_ENABLE_HEALTHCHECKS overrides it.
    """
    ignore = _read_numbers(settings.xids.ignore, "discovery.nvidia.xids.ignore")
    fatal = _read_numbers(settings.xids.fatal, "discovery.nvidia.xids.fatal")
    if both := sorted(ignore & fatal):
        raise BadConfig(f"discovery.nvidia.xids: {both[0]} is in both ignore and fatal")
    disabled = _split_list(environment.get("DP_DISABLE_HEALTHCHECKS", ""))
    enabled = _split_list(environment.get("DP_ENABLE_HEALTHCHECKS", ""))
    enabled_numbers = _parse_numbers(enabled)
    return XidRules(
        ignore=ignore | (_parse_numbers(disabled) - enabled_numbers - fatal),
        fatal=fatal | (enabled_numbers - ignore),
        is_off=bool({"all", "xids"} & disabled) and not {"all", "xids"} & enabled,
        is_upstream=settings.upstream_compatible,
    )


def _split_list(text: str) -> frozenset[str]:
    return frozenset(word.strip().lower() for word in text.split(",") if word.strip())


def _parse_numbers(words: Iterable[str]) -> frozenset[int]:
    # the variable is made for another program, so words that are not numbers are no error
    return frozenset(int(word) for word in words if word.isdecimal() and len(word) < 7)


def _read_numbers(texts: Iterable[str], key: str) -> frozenset[int]:
    numbers = set()
    for text in map(str.strip, texts):
        if not (text.isascii() and text.isdecimal()) or int(text) > MAX_XID:
            raise BadConfig(f"{key}: {text[:20]!r} is not the number of an Xid")
        numbers.add(int(text))
    return frozenset(numbers)
