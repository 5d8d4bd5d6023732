"""What a QoS class, or the node's root, gets of block devices."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, field

from agent.model.slo.ranges import BlockType, DeviceName, Percent, Positive, Whole


class IoConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits of one device; `None` is not set. Of rates, 0 is no limit; latencies are in µs."""

    read_iops: Whole | None = field(default=None, name="readIOPS")
    write_iops: Whole | None = field(default=None, name="writeIOPS")
    read_bps: Whole | None = field(default=None, name="readBPS")
    write_bps: Whole | None = field(default=None, name="writeBPS")
    io_weight_percent: Annotated[int, Meta(ge=1, le=100)] | None = None
    read_latency: Whole | None = None
    write_latency: Whole | None = None
    read_latency_percent: Percent | None = None
    write_latency_percent: Percent | None = None
    enable_user_model: bool | None = None
    model_read_bps: Positive | None = field(default=None, name="modelReadBPS")
    model_write_bps: Positive | None = field(default=None, name="modelWriteBPS")
    model_read_seq_iops: Positive | None = field(default=None, name="modelReadSeqIOPS")
    model_write_seq_iops: Positive | None = field(default=None, name="modelWriteSeqIOPS")
    model_read_rand_iops: Positive | None = field(default=None, name="modelReadRandIOPS")
    model_write_rand_iops: Positive | None = field(default=None, name="modelWriteRandIOPS")


class Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device, the disk of a volume group, or that of a pod's volume."""

    name: DeviceName = ""
    type: BlockType = "device"
    io_cfg: IoConfig = IoConfig()


class BlkioQos(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Devices with their limits. Switched off it is an empty list, absent it is nobody's wish."""

    enable: bool = False
    blocks: tuple[Block, ...] = ()
