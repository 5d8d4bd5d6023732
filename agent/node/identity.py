"""Who this node is."""

from __future__ import annotations

import socket

from agent.config.sections import Settings
from agent.host.boot import read_identity
from agent.model.snapshot import NodeIdentity
from agent.recording.open import OpenedHost

FALLBACK_NAME = "node"  # of a recorded host that holds no name of its own


def identity(opened: OpenedHost, settings: Settings) -> NodeIdentity:
    """Return who this node is: the name set, else the host's own, else the recording's."""
    own = socket.gethostname() if opened.spec is None else opened.source.split(".")[0]
    name = settings.node.name or own or FALLBACK_NAME
    return read_identity(opened.files, name, opened.source)
