"""Which values the wire allows; `overlay` refuses all others, and says these ranges for why."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

MAX_INT64 = 2**63 - 1
MAX_INT32 = 2**31 - 1

Percent = Annotated[int, Meta(ge=0, le=100)]
Flag = Annotated[int, Meta(ge=0, le=1)]  # a number on the wire, as the kernel's file wants it
Whole = Annotated[int, Meta(ge=0, le=MAX_INT64)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INT64)]
Int64 = Annotated[int, Meta(ge=-MAX_INT64 - 1, le=MAX_INT64)]
Int32 = Annotated[int, Meta(ge=-MAX_INT32 - 1, le=MAX_INT32)]

# from 8000 on pods are production: those are not evicted for what others request
EvictablePriority = Annotated[int, Meta(ge=0, le=7999)]

# read by `special`, whose patterns are not compiled before there is an object to read
DirectoryName = Annotated[
    str, Meta(description="a name of 1 to 128 characters without slashes and control characters")
]
RelativePath = Annotated[
    str, Meta(description="a relative path without '..' and control characters")
]
DeviceName = Annotated[
    str, Meta(description="a name of 1 to 253 characters without control characters")
]
Quantity = Annotated[str, Meta(description="a quantity that is not negative")]

# whole numbers are percent of the node's bandwidth, text is a quantity
Bandwidth = int | str

SuppressPolicy = Literal["cpuset", "cfsQuota"]
EvictPolicy = Literal["evictByRealLimit", "evictByAllocatable"]
BurstPolicy = Literal["none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto"]
CpuPolicy = Literal["groupIdentity", "coreSched"]
NetworkPolicy = Literal["tc", "terway-qos"]
BlockType = Literal["device", "volumegroup", "podvolume"]
Qos = Literal["", "LSE", "LSR", "LS", "BE", "SYSTEM"]
Priority = Literal["", "koord-prod", "koord-mid", "koord-batch", "koord-free"]
CgroupBase = Literal["CgroupRoot", "Kubepods", "KubepodsBurstable", "KubepodsBesteffort"]
