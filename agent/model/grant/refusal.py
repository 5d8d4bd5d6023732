"""Why a container cannot have what it was granted: a closed list, each with one meaning."""

from __future__ import annotations

import enum

from agent.errors import AgentError

MAX_DETAIL = 200


class Refusal(enum.Enum):
    """The value is the CamelCase reason of the event that a person sees."""

    BAD_GRANT = "BadGrant"  # the annotation is not what a scheduler writes
    BAD_DEVICE_ID = "BadDeviceId"  # a name that must not reach an environment or a path
    BOUND_TO_VFIO = "BoundToVFIO"
    CDI_NAME_MISSING = "CDINameMissing"
    DEVICE_CONFLICT = "DeviceConflict"  # two answers for one path, variable or limit
    DEVICE_NOT_GRANTABLE = "DeviceNotGrantable"  # another driver's, or nothing of it is for pods
    DEVICE_NODE_MISSING = "DeviceNodeMissing"
    DEVICE_OUT_OF_SERVICE = "DeviceOutOfService"  # only of pods that do not run yet
    DEVICE_TAKEN = "DeviceTaken"  # another pod holds it, or what is left is less than granted
    DEVICE_UNKNOWN = "DeviceUnknown"
    DEVICES_NOT_KNOWN_YET = "DevicesNotKnownYet"  # its vendor has not answered since the start
    HAMI_CORE_MISSING = "HAMiCoreMissing"
    HOST_NOT_READ_YET = "HostNotReadYet"  # what the host has for containers
    INCOMPLETE_GRANT = "IncompleteGrant"  # an amount that the isolation needs is not in it
    MIG_ENABLED = "MIGEnabled"  # the card was granted whole, but is cut up
    MIG_NODE_MISSING = "MIGNodeMissing"
    MIXED_GRANT = "MixedGrant"  # a slice beside whole cards, or slices of several cards
    MPS_DOWN = "MPSDown"
    NOT_ASKED_FOR = "GrantNotAskedFor"  # more than the pod's own requests: no scheduler wrote it
    NODE_MISMATCH = "NodeMismatch"  # the node has other numbers than its driver
    PARTITION_MISSING = "PartitionMissing"
    REQUESTS_UNKNOWN = "PodRequestsUnknown"  # neither the API server nor the kubelet lists the pod
    TEMPLATE_UNKNOWN = "TemplateUnknown"  # the chip cannot be cut so
    UVM_MISSING = "UVMMissing"
    VERBS_MISSING = "VerbsMissing"
    VIRTUAL_FUNCTION_UNKNOWN = "VirtualFunctionUnknown"  # not of the card that was granted
    WRONG_NODE = "WrongNode"


class GrantRefused(AgentError):
    """The container is not started; the message names the device or path and the cause."""

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(f"{refusal.value}: {detail[:MAX_DETAIL]}")
        self.refusal = refusal

    @property
    def reason(self) -> str:
        """Return the CamelCase reason."""
        return self.refusal.value
