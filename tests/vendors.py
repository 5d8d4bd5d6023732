"""Settings as the agent decodes them, with the sections of all vendors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from agent.config.decoder import decode_section
from agent.config.settings import Settings
from agent.config.sources import decode_settings
from agent.snapshot.host_files import HostFiles
from agent.snapshot.settings import VendorSettings
from agent.snapshot.vendor import DeviceVendor, SessionContext, VendorDescription, VendorSession
from agent.workers.load import vendor_descriptions

DESCRIPTIONS = vendor_descriptions()

T = TypeVar("T", bound=VendorSettings)


def decode(data: object) -> Settings:
    """Return the settings that plain data give."""
    return decode_settings(data, DESCRIPTIONS)


def section(kind: type[T], data: Mapping[str, object]) -> T:
    """Return a vendor's own settings, as from its section of a file."""
    result = decode_section(kind, data)
    assert isinstance(result, kind)
    return result


def checked_settings(vendor: VendorDescription, kind: type[T], data: Mapping[str, object]) -> T:
    """Return a vendor's settings as the agent decodes and checks its section of a file."""
    result = decode({"discovery": {vendor.name: data}}).discovery.of(vendor)
    assert isinstance(result, kind)
    result.check()
    return result


def split_settings(
    vendor: VendorDescription, data: Mapping[str, object]
) -> tuple[VendorSettings, SessionContext]:
    """Return settings and context of a session; `state_dir` and `replay` are of the context."""
    own = {name: value for name, value in data.items() if name not in ("state_dir", "replay")}
    context = SessionContext(
        state_dir=str(data.get("state_dir") or ""), is_replay=data.get("replay") is True
    )
    return msgspec.convert(own, vendor.settings), context


def open_session(
    vendor: DeviceVendor, host: HostFiles, data: Mapping[str, object] | None = None
) -> VendorSession:
    """Open a session, with settings as `split_settings` takes them."""
    return vendor.open(host, *split_settings(vendor.description, data or {}))
