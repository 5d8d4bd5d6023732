from __future__ import annotations

from pathlib import Path

from agent.host.files import LiveHostFiles
from plugins.shared.pci_functions import DEVICES, find_functions


def test_functions_are_found_by_maker_in_the_order_of_addresses_and_odd_ones_are_left_out(
    tmp_path: Path,
) -> None:
    bus = tmp_path / DEVICES.lstrip("/")
    for name, vendor in (
        ("10000:01:00.0", "0x19E5\n"),
        ("0000:c1:00.0", "0x19e5\n"),
        ("0000:02:00.0", "0xcabc\n"),
        ("0000:03:00.0", "0x8086\n"),
        ("not-an-address", "0x19e5\n"),
        ("0000:04:00.0", ""),
    ):
        (bus / name).mkdir(parents=True)
        (bus / name / "vendor").write_text(vendor)
    (bus / "0000:05:00.0").mkdir()
    functions = find_functions(LiveHostFiles(str(tmp_path)), (b"0x19e5", b"0xcabc"))
    assert [(f.bus_id, f.vendor_id) for f in functions] == [
        ("0000:02:00.0", b"0xcabc"),
        ("0000:c1:00.0", b"0x19e5"),
        ("10000:01:00.0", b"0x19e5"),
    ]
    assert functions[0].folder == f"{DEVICES}/0000:02:00.0"
    assert find_functions(LiveHostFiles(str(tmp_path / "nothing")), (b"0x19e5",)) == ()
