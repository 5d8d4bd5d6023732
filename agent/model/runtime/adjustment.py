"""What hooks change in a container or pod, whichever way leads there."""

from __future__ import annotations

import msgspec

from agent.model.grant.edits import NONE, ContainerEdits

UNLIMITED = -1  # of quota and memory


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory of a container or pod; `None` is what nobody said, or what stays."""

    shares: int | None = None
    quota_us: int | None = None  # -1: unlimited
    period_us: int | None = None
    cpus: str | None = None  # list format; "" empties the set
    memory_bytes: int | None = None  # limit; -1: unlimited


NO_RESOURCES = Resources()


class CoreGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Whose processes may share a core with a container's; `id` may be empty, which is a group."""

    enabled: bool = False  # False: the kernel's default cookie, which a reset gives
    id: str = ""


class Adjustment(msgspec.Struct, frozen=True, kw_only=True):
    """All that one stage changes. `failed` is why the container must not start, if it must not."""

    edits: ContainerEdits = NONE
    resources: Resources = NO_RESOURCES
    rdt_class: str | None = None
    oom_score_adj: int | None = None
    bvt_warp_ns: int | None = None  # group identity, of a pod
    core_group: CoreGroup | None = None  # of a container's processes, once it runs
    failed: str = ""  # reason and message, for the runtime
    reason: str = ""  # CamelCase, of `failed`


NOTHING = Adjustment()
