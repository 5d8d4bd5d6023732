"""Which values of a NodeSLO count: ranges and choices."""

from __future__ import annotations

BE = "resourceUsedThresholdWithBE"
LS = "resourceQOSStrategy.lsClass"

# field, the least and the greatest that counts; None: there is no end but the format's
RANGES: list[tuple[str, int, int | None]] = [
    (f"{BE}.cpuSuppressThresholdPercent", 0, 100),
    (f"{BE}.cpuSuppressMinPercent", 0, 100),
    (f"{BE}.memoryEvictThresholdPercent", 0, 100),
    (f"{BE}.memoryAllocatableEvictThresholdPercent", 0, None),
    (f"{BE}.memoryAllocatableEvictLowerPercent", 0, None),
    (f"{BE}.cpuEvictBESatisfactionUpperPercent", 0, 100),
    (f"{BE}.cpuEvictBESatisfactionLowerPercent", 0, 100),
    (f"{BE}.cpuEvictBEUsageThresholdPercent", 0, 100),
    (f"{BE}.cpuEvictTimeWindowSeconds", 1, None),
    (f"{BE}.cpuEvictThresholdPercent", 0, 100),
    (f"{BE}.cpuEvictLowerPercent", 0, 100),
    (f"{BE}.cpuAllocatableEvictThresholdPercent", 0, None),
    (f"{BE}.cpuAllocatableEvictLowerPercent", 0, None),
    (f"{BE}.evictEnabledPriorityThreshold", -(2**31), 2**31 - 1),
    (f"{BE}.allocatableEvictPriorityThreshold", 0, 7999),
    (f"{LS}.cpuQOS.groupIdentity", -1, 2),
    (f"{LS}.cpuQOS.schedIdle", 0, 1),
    (f"{LS}.memoryQOS.minLimitPercent", 0, 100),
    (f"{LS}.memoryQOS.lowLimitPercent", 0, 100),
    (f"{LS}.memoryQOS.throttlingPercent", 0, 100),
    (f"{LS}.memoryQOS.wmarkRatio", 0, 100),
    (f"{LS}.memoryQOS.wmarkScalePermill", 1, 1000),
    (f"{LS}.memoryQOS.wmarkMinAdj", -25, 50),
    (f"{LS}.memoryQOS.priorityEnable", 0, 1),
    (f"{LS}.memoryQOS.priority", 0, 12),
    (f"{LS}.memoryQOS.oomKillGroup", 0, 1),
    (f"{LS}.memoryQOS.pageCacheLimitPercent", 0, 100),
    (f"{LS}.memoryQOS.pageCacheLimitSize", 0, None),
    (f"{LS}.resctrlQOS.catRangeStartPercent", 0, 99),
    (f"{LS}.resctrlQOS.catRangeEndPercent", 1, 100),
    (f"{LS}.resctrlQOS.mbaPercent", 0, 100),
    (f"{LS}.networkQOS.ingressRequest", 0, 100),
    (f"{LS}.networkQOS.ingressLimit", 0, 100),
    (f"{LS}.networkQOS.egressRequest", 0, 100),
    (f"{LS}.networkQOS.egressLimit", 0, 100),
    ("cpuBurstStrategy.cpuBurstPercent", 0, 10000),
    ("cpuBurstStrategy.cfsQuotaBurstPercent", 100, None),
    ("cpuBurstStrategy.cfsQuotaBurstPeriodSeconds", -1, None),
    ("cpuBurstStrategy.sharePoolThresholdPercent", 0, 100),
    ("systemStrategy.minFreeKbytesFactor", 1, None),
    ("systemStrategy.watermarkScaleFactor", 1, 400),
    ("systemStrategy.memcgReapBackGround", 0, 1),
    ("systemStrategy.schedGroupIdentityEnabled", 0, 1),
    ("systemStrategy.schedIdleSaverWmark", -(2**63), None),
    ("systemStrategy.pageCacheLimitEnabled", 0, 1),
]
CHOICES = [
    (f"{BE}.cpuSuppressPolicy", ("cpuset", "cfsQuota")),
    (f"{BE}.cpuEvictPolicy", ("evictByRealLimit", "evictByAllocatable")),
    ("resourceQOSStrategy.policies.cpuPolicy", ("groupIdentity", "coreSched")),
    ("resourceQOSStrategy.policies.netQOSPolicy", ("tc", "terway-qos")),
    ("cpuBurstStrategy.policy", ("none", "cpuBurstOnly", "cfsQuotaBurstOnly", "auto")),
]
