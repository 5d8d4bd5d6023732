"""Layouts of the records of CNDev that the agent reads and writes."""

from tests.stubs.describe import records

RECORDS = records("""
CardInfo v 8 4: number@4:u32
UUID v 56 8: uuid@4:c37 ncs@48:u64
CardName v 8 4: id@4:i32
Mode v 8 4: mode@4:i32
Numa v 8 4: node@4:i32
CardSN v 24 8: sn@8:u64 motherboard@16:u64
VersionInfo v 28 4: mcu@4:u32*3 driver@16:u32*3
MemV2 176 8: total@0:i64 used@8:i64 reserved@16:i64 vtotal@24:i64 vused@32:i64 global@40:u64
PcieV2 64 4: subsystem@0:u32 device@4:u32 vendor@8:u16 subvendor@10:u16 domain@12:u32 bus@16:u32
  dev@20:u32 func@24:u32 module@28:u16 slot@30:u16
Health v 16 4: health@4:i32 device@8:i32 driver@12:i32
Incident 540 4: system@0:i32 health@4:i32 msg@8:c512 device_id@520:i32 bdf@524:u32 code@528:i32
HealthV2 34612 4: health@0:i32 device@4:i32 driver@8:i32 overall@12:i32 count@16:u32
  incidents@20:Incident*64
Util v 328 4: average@4:i32 core@8:i32*80
Power 84 4: usage@0:i32 cap@4:i32 machine@8:i32 tdp@12:i32 max@16:i32
Temp v 148 4: board@4:i32 cluster@8:i32*20 die@88:i32*8 chip@120:i32 memory@132:i32
Ecc v 72 8: one@8:u64 multiple_one@16:u64 multiple@24:u64 multiple_multiple@32:u64
  corrected@40:u64 uncorrected@48:u64 total@56:u64 forbidden@64:u64
MemoryErrors v 160 8: sram_single@4:u32 sram_double@8:u32 sram_parity@12:u32 dram_single@16:u32
  dram_double@20:u32 dram_single_total@24:u64 dram_double_total@32:u64 sram_single_total@40:u64
  sram_double_total@48:u64 sram_parity_total@56:u64 is_exceeded@64:u8
Parity v 8 4: count@4:i32
DieLink v 24 8: errors@8:u64 overflows@16:u64
Voltage 40 2: core@0:i16 soc@2:i16 memory@6:i16
Current 76 4: core@0:i32 soc@4:i32 memory@8:i32
Overheat v 16 4: offs@4:u32 slowdowns@8:u32
Throttle v 28 4: tdp@4:i32 power_setting@8:i32 clock_setting@12:i32 frequency_locked@16:i32
  power_brake@20:i32 thermal@24:i32
Proc v 24 8: pid@4:u32 physical@8:u64 virtual@16:u64
ProcUtil v 28 4: pid@4:u32 mlu@8:u32 jpu@12:u32 dec@16:u32 enc@20:u32 mem@24:u32
LinkV2 44 4: mac@0:i32 serdes@4:i32 presence@8:i32 progress@12:i32
Remote v 376 8: mc_sn@8:u64 ba_sn@16:u64 slot@24:u32 port@28:u32 ip@32:u8*16 uuid@48:c37
  ipver@88:u32 ipvalid@92:u32 connect@96:i32 ncs@104:u64 mac@112:u8*6 port_name@118:c256
CoreCount v 8 4: count@4:i32
Clocks v 68 4: board@4:i32 ddr@8:i32 overtemp@12:u8 fast@13:u8 cluster_count@14:u16
  cluster@16:u16*20 board_default@56:i32 board_range@60:i32*2
VideoCodecs v 256 4: vpus@4:i32 vpu@8:i32*20 encoders@88:i32 encoder@92:i32*20 decoders@172:i32
  decoder@176:i32*20
ImageCodecs v 88 4: jpus@4:i32 jpu@8:i32*20
PcieTraffic 104 8: read@0:i64 write@8:i64 read_total@16:i64 write_total@24:i64 time@32:u64
PcieReplays v 8 4: count@4:u32
PowerLimit v 8 4: watts@4:u16 decimal@6:u16
PowerRange v 12 4: low@4:u16 low_decimal@6:u16 high@8:u16 high_decimal@10:u16
LinkCounters v 152 8: read_bytes@8:u64 read_packets@16:u64 write_bytes@24:u64 write_packets@32:u64
  replay@40:u64 fatal@48:u64 ecc_double@56:u64 crc24@64:u64 crc32@72:u64 corrected@80:u64
  uncorrected@88:u64 read_errors@96:u64 write_errors@104:u64 illegal@112:u64 cnp@120:u64 pfc@128:u64
  queues@136:u64 tasks@144:u64
LinkErrors 128 8: corrected_fec@0:u64 uncorrected_fec@8:u64 rx_bad_fcs@16:u64 tx_bad_fcs@24:u64
  illegal_access@32:u64
LinkEvents 128 8: down@0:u64 replay@8:u64 replay_fail@16:u64
LinkSpeed v 12 4: gigabytes@4:f32 format@8:i32
Optical 432 8: present@2:u8 temperature@68:f32 voltage@92:f32 lanes@116:i32 sent@120:f32*8
  received@280:f32*8 spare@368:u64*8
LinkCapability v 12 4: p2p@4:u32 serdes@8:u32
LinkMode v 12 4: mode@4:i32 supported@8:i32
LinkVersion v 16 4: number@4:u32*3
LinkName 16 1: name@0:c16
TinyCores v 48 4: count@4:i32 core@8:i32*10
ChipCpu v 2088 4: average@4:u16 cores@6:u8 core@7:u8*32 mode@39:u8*2048
OsMemory 40 4: total@0:u32 used@4:u32
Bar4 24 8: total@0:u64 used@8:u64 free@16:u64
Ddr v 16 4: width@4:u32 bandwidth@8:u32 decimal@12:u32
ClockLock v 8 4: is_locked@4:u8
Heartbeats v 8 4: count@4:u32
FieldValue 48 8: id@0:i32 code@4:i32 value@8:u64 type@16:i32 latency@24:i64 time@32:i64 scope@40:u32
MpmMetric 40 8: id@0:i32 code@4:i32 value@8:f64 short_name@16:u64 long_name@24:u64 unit@32:u64
MpmRequest 10264 8: layout@0:u32 count@4:u32 first@8:u64 second@16:u64 metrics@24:MpmMetric*256
Rows v 20 4: correctable@4:u32 uncorrectable@8:u32 pending@12:u32 failed@16:u32
RowsV2 v 24 4: correctable@4:u32 uncorrectable@8:u32 histogram@12:u32*3
Repair v 8 4: retire_pending@4:u8 pending@5:u8 failed@6:u8
RetiredPages v 4112 8: cause@4:i32 count@8:u32 addresses@16:u64*512
Mim v 1016 4: parent@4:i32 instance@8:i32 profile@12:i32 uuid@16:c37 bdf@56:u32*4 placement@72:i32
  cores@84:i32 memory@100:i32 profile_name@104:c100 dev_node@204:c100 ipcm_node@304:c100
  name@404:c100
SMlu v 904 8: profile@4:i32 instance@8:i32 uuid@12:c37 bdf@52:u32*4 profile_name@68:c100
  name@168:c100 dev_node@268:c100 quota@368:u32*2 memory@376:u64*2
ProfIds v 520 4: count@4:i32 id@8:i32*128
Prof v 144 8: id@4:i32 name@8:c100 total@108:u32 remain@112:u32 quota@116:u32*2 memory@128:u64*2
Set v 16 8: quota@4:u32 memory@8:u64
Event v 104 8: device@4:i32 data@8:u64 type@16:u64 time@24:u64 cpu@32:u32 mlu@36:u32
""")
