"""What this node is called."""

from __future__ import annotations

import os

from agent.config.sections import Settings
from agent.recording.open import OpenedHost

FALLBACK_NAME = "node"  # of a recorded host that holds no name of its own


def node_name(opened: OpenedHost, settings: Settings) -> str:
    """Return the name that was set, else the host's own, else the recording's."""
    own = os.uname().nodename if opened.spec is None else opened.source.split(".")[0]
    return settings.node.name or own or FALLBACK_NAME
