"""By which way a vendor's devices get into a container, where a setting decides it."""

from __future__ import annotations

from msgspec.structs import replace

from agent.model.grant.host import HostMeans

AUTO, CDI, NODES, ENV = "auto", "cdi", "nodes", "env"


def by_way(means: HostMeans, vendor: str, injection: str) -> HostMeans:
    """Return the host as it makes the vendor take this way; `env` is that of its own runtime."""
    if injection == AUTO:
        return means
    settings = dict(means.settings)
    if vendor == "nvidia":
        settings["injection"] = injection
    elif vendor != "rdma":
        settings["injection"] = CDI if injection == CDI else AUTO
    return replace(
        means,
        settings=settings,
        cdi_enabled=injection == CDI,
        default_handler=vendor if injection == ENV else "",
    )
