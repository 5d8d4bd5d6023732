"""Settings of `discovery.nvidia`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from agent.snapshot.settings import SettingRule
from agent.snapshot.vendor import SWITCH_CHOICES, VendorSettings
from plugins.vendors.nvidia.health.xid import read_xid_rules

PRELOAD_CHOICES = ("env", "file")
PARTITION_POLICIES = ("Prefer", "Honor")


class XidSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What Xid errors mean on this node, where a person knows better than the catalogue."""

    ignore: Annotated[
        tuple[str, ...], SettingRule("Xid numbers that never change a card's health")
    ] = ()
    fatal: Annotated[
        tuple[str, ...], SettingRule("Xid numbers that take a card out of service")
    ] = ()


class NvidiaSettings(VendorSettings, frozen=True, kw_only=True):
    """How the NVIDIA worker finds its driver."""

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

    def check(self, *, is_forced: bool = False) -> None:  # noqa: ARG002 - see VendorSettings
        """Refuse what is no number of an Xid."""
        if self.xids != XidSettings():
            read_xid_rules(msgspec.structs.asdict(self), {})

    @property
    def library_folders(self) -> tuple[str, ...]:
        """Folders that the dynamic linker searches first in the worker."""
        return self.library_dirs
