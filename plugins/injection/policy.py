"""Settings of injection as typed data; what else stands in a vendor's section is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from agent.errors import BadConfig

P = TypeVar("P", bound=msgspec.Struct)


def policy_of(settings: Mapping[str, object], kind: type[P], section: str) -> P:
    """Return the keys of `kind` that are set, the others at their defaults; `BadConfig` else."""
    known = {name: settings[name] for name in kind.__struct_fields__ if name in settings}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{section}: {str(error)[:120]}") from error
