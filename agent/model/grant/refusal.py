"""Why a container cannot have what it was granted: a closed list, each with one meaning."""

from __future__ import annotations

import enum

from agent.errors import AgentError

MAX_DETAIL = 200


class Refusal(enum.Enum):
    """The value is the CamelCase reason of the event that a person sees."""

    BAD_DEVICE_ID = "BadDeviceId"  # a name that must not reach an environment or a path
    BOUND_TO_VFIO = "BoundToVFIO"
    CDI_NAME_MISSING = "CDINameMissing"
    DEVICE_CONFLICT = "DeviceConflict"  # two answers for one path, variable or limit
    DEVICE_NODE_MISSING = "DeviceNodeMissing"
    DEVICE_UNKNOWN = "DeviceUnknown"
    HAMI_CORE_MISSING = "HAMiCoreMissing"
    INCOMPLETE_GRANT = "IncompleteGrant"  # an amount that the isolation needs is not in it
    MIG_ENABLED = "MIGEnabled"  # the card was granted whole, but is cut up
    MIG_NODE_MISSING = "MIGNodeMissing"
    MIXED_GRANT = "MixedGrant"  # a slice beside whole cards, or slices of several cards
    MPS_DOWN = "MPSDown"
    NODE_MISMATCH = "NodeMismatch"  # the node has other numbers than its driver
    PARTITION_MISSING = "PartitionMissing"
    UVM_MISSING = "UVMMissing"
    VERBS_MISSING = "VerbsMissing"


class GrantRefused(AgentError):
    """The container is not started; the message names the device or path and the cause."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(f"{refusal.value}: {detail[:MAX_DETAIL]}")
        self.refusal = refusal

    @property
    def reason(self) -> str:
        """Return the CamelCase reason."""
        return self.refusal.value
