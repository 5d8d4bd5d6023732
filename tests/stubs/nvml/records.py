"""Structs of NVML, as the binding and the driver's header lay them out."""

from __future__ import annotations

from tests.stubs.describe import records

RECORDS = records("""
Pci 68 4: legacy@0:c16 domain@16:u32 bus@20:u32 device@24:u32 id@28:u32 subsystem@32:u32
  bus_id@36:c32
MemoryV1 24 8: total@0:u64 free@8:u64 used@16:u64
MemoryV2 =0x02000028 40 8: total@8:u64 reserved@16:u64 free@24:u64 used@32:u64
Bar1 24 8: total@0:u64 free@8:u64 used@16:u64
Utilization 8 4: gpu@0:u32 memory@4:u32
Placement 8 4: start@0:u32 size@4:u32
Process 24 8: pid@0:u32 mem@8:u64 gi@16:u32 ci@20:u32
OldProcess 16 8: pid@0:u32 mem@8:u64
Busy 32 8: pid@0:u32 time@8:u64 sm@16:u32 mem@20:u32 enc@24:u32 dec@28:u32
Sample 16 8: time@0:u64 value@8:u64
FieldValue 40 8: id@0:u32 scope@4:u32 time@8:i64 latency@16:i64 type@24:u32 code@28:i32 value@32:u64
EventData 32 8: device@0:ptr type@8:u64 data@16:u64 gi@24:u32 ci@28:u32
Attributes 40 8: sm@0:u32 copy@4:u32 dec@8:u32 enc@12:u32 jpeg@16:u32 ofa@20:u32 gi_slices@24:u32
  ci_slices@28:u32 mb@32:u64
GiProfileV1 48 8: id@0:u32 p2p@4:u32 slices@8:u32 instances@12:u32 sm@16:u32 copy@20:u32 dec@24:u32
  enc@28:u32 jpeg@32:u32 ofa@36:u32 mb@40:u64
GiProfileV2 =0x02000098 152 8: id@4:u32 p2p@8:u32 slices@12:u32 instances@16:u32 sm@20:u32
  copy@24:u32 dec@28:u32 enc@32:u32 jpeg@36:u32 ofa@40:u32 mb@48:u64 name@56:c96
CiProfileV1 36 4: id@0:u32 slices@4:u32 instances@8:u32 sm@12:u32 copy@16:u32 dec@20:u32 enc@24:u32
  jpeg@28:u32 ofa@32:u32
CiProfileV2 =0x02000088 136 4: id@4:u32 slices@8:u32 instances@12:u32 sm@16:u32 copy@20:u32
  dec@24:u32 enc@28:u32 jpeg@32:u32 ofa@36:u32 name@40:c96
GiInfo 24 8: device@0:ptr id@8:u32 profile@12:u32 placement@16:Placement
CiInfo 32 8: device@0:ptr gi@8:ptr id@16:u32 profile@20:u32 placement@24:Placement
FabricV1 28 4: uuid@0:u8*16 status@16:u32 clique@20:u32 state@24:u8
FabricV2 36 4: version@0:u32 uuid@4:u8*16 status@20:u32 clique@24:u32 state@28:u8 mask@32:u32
FabricV3 40 4: version@0:u32 uuid@4:u8*16 status@20:u32 clique@24:u32 state@28:u8 mask@32:u32
  summary@36:u8
Addressing =0x01000008 8 4: mode@4:u32
Platform =0x0200002c 44 4: guid@4:c16 chassis@20:c16 numbers@36:u8*5
Confidential 12 4: environment@0:u32 on@4:u32 tools@8:u32
GpmMetric 40 8: id@0:u32 code@4:i32 value@8:f64 words@16:ptr*3
GpmSupport =0x1 8 4: supported@4:u32
Sram =0x01000068 104 8: counts@8:u64*11 exceeded@96:u32
LicensableFeatures 860 4: supported@0:i32 count@4:u32 code@8:u32 state@12:u32 info@16:c128
  product@144:c128 enabled@272:u32 expiry@276:u8*584
Repair 12 4: version@0:u32 channel@4:u32 tpc@8:u32
Unrepairable 8 4: version@0:u32 flag@4:u32
SetRequest 16 8: version@0:u32 set@8:ptr
RegisterRequest 24 8: version@0:u32 types@8:u64 set@16:ptr
SystemEvent 16 8: type@0:u64 gpu@8:u32
WaitRequest 32 8: version@0:u32 timeout_ms@4:u32 set@8:ptr data@16:ptr room@24:u32 count@28:u32
""")
