"""Structures of libcndev, interface version 6, on 64-bit machines; `versioned` ones say theirs."""

from __future__ import annotations

from plugins.bindings.records import Records

_VERSION = "version@0:i32 "

# name: (a version comes first, size, alignment and members)
_TABLE: dict[str, tuple[bool, str]] = {
    "CardInfo": (True, "8 4: number@4:u32"),
    "UUID": (True, "56 8: uuid@4:c37 ncs@48:u64"),
    "CardName": (True, "8 4: id@4:i32"),
    "Mode": (True, "8 4: mode@4:i32"),
    "Numa": (True, "8 4: node@4:i32"),
    "CardSN": (True, "24 8: sn@8:u64 motherboard@16:u64"),
    "VersionInfo": (True, "28 4: mcu@4:u32*3 driver@16:u32*3"),
    "MemV2": (False, "176 8: total@0:i64 used@8:i64 reserved@16:i64 vtotal@24:i64 vused@32:i64"),
    "PcieV2": (
        False,
        "64 4: subsystem@0:u32 device@4:u32 vendor@8:u16 subvendor@10:u16 domain@12:u32"
        " bus@16:u32 dev@20:u32 func@24:u32 module@28:u16 slot@30:u16",
    ),
    "Health": (True, "16 4: health@4:i32 device@8:i32 driver@12:i32"),
    "Incident": (
        False,
        "540 4: system@0:i32 health@4:i32 msg@8:c512 device_id@520:i32 bdf@524:u32 code@528:i32",
    ),
    "HealthV2": (
        False,
        "34612 4: health@0:i32 device@4:i32 driver@8:i32 overall@12:i32 count@16:u32"
        " incidents@20:Incident*64",
    ),
    "Util": (True, "328 4: average@4:i32 core@8:i32*80"),
    "Power": (False, "84 4: usage@0:i32 cap@4:i32 machine@8:i32 tdp@12:i32 max@16:i32"),
    "Temp": (True, "148 4: board@4:i32 cluster@8:i32*20 die@88:i32*8 chip@120:i32 memory@132:i32"),
    "Ecc": (True, "72 8: one@8:u64 corrected@40:u64 uncorrected@48:u64 total@56:u64"),
    "Proc": (True, "24 8: pid@4:u32 physical@8:u64 virtual@16:u64"),
    "ProcUtil": (True, "28 4: pid@4:u32 mlu@8:u32 jpu@12:u32 dec@16:u32 enc@20:u32 mem@24:u32"),
    "LinkV2": (False, "44 4: mac@0:i32 serdes@4:i32 presence@8:i32 progress@12:i32"),
    "Remote": (
        True,
        "376 8: mc_sn@8:u64 ba_sn@16:u64 slot@24:u32 port@28:u32 ip@32:u8*16 uuid@48:c37"
        " ipver@88:u32 ipvalid@92:u32 connect@96:i32 ncs@104:u64 mac@112:u8*6 port_name@118:c256",
    ),
    "Mim": (
        True,
        "1016 4: parent@4:i32 instance@8:i32 profile@12:i32 uuid@16:c37 bdf@56:u32*4"
        " placement@72:i32 cores@84:i32 memory@100:i32 profile_name@104:c100 dev_node@204:c100"
        " ipcm_node@304:c100 name@404:c100",
    ),
    "SMlu": (
        True,
        "904 8: profile@4:i32 instance@8:i32 uuid@12:c37 bdf@52:u32*4 profile_name@68:c100"
        " name@168:c100 dev_node@268:c100 quota@368:u32*2 memory@376:u64*2",
    ),
    "ProfIds": (True, "520 4: count@4:i32 id@8:i32*128"),
    "Prof": (
        True,
        "144 8: id@4:i32 name@8:c100 total@108:u32 remain@112:u32 quota@116:u32*2 memory@128:u64*2",
    ),
    "Set": (True, "16 8: quota@4:u32 memory@8:u64"),
    "Event": (
        True,
        "104 8: device@4:i32 data@8:u64 type@16:u64 time@24:u64 cpu@32:u32 mlu@36:u32",
    ),
}

NAMES = tuple(_TABLE)
VERSIONED = frozenset(name for name, (versioned, _) in _TABLE.items() if versioned)
RECORDS = Records(
    {
        name: text.replace(": ", f": {_VERSION}", 1) if versioned else text
        for name, (versioned, text) in _TABLE.items()
    }
)
