"""Names of sockets in the kubelet's folder: ours are told from others, and are never too long."""

from __future__ import annotations

import hashlib
import os
import re

FOLDER = "device-plugins"  # below the kubelet's own
KUBELET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"
PREFIX, SUFFIX = "xpu-agent-", ".sock"
MAX_PATH_BYTES = 107  # of a socket's address
MAX_NAME = 60  # characters: leaves 47 for the folder and its slash
HASH = 8  # characters of the resource's hash in a name that was cut

_ODD = re.compile(r"[^A-Za-z0-9._-]")


def plugin_folder(root_dir: str) -> str:
    """Return where the kubelet with that folder listens for device plug-ins."""
    return f"{root_dir.rstrip('/')}/{FOLDER}"


def socket_name(resource: str, number: int) -> str:
    """Return the file name of a resource's server; each of its incarnations has another number.

    The start of a long name stays readable; its hash keeps it apart from others with that start.
    Names that differ only where `/` stands are the same file name: look before one is taken.
    """
    plain, tail = _ODD.sub("-", resource), f".{number}{SUFFIX}"
    room = MAX_NAME - len(PREFIX) - len(tail)
    if len(plain) > room:
        digest = hashlib.sha256(resource.encode("utf-8", "replace")).hexdigest()[:HASH]
        plain = f"{plain[: room - HASH - 1]}-{digest}"
    return f"{PREFIX}{plain}{tail}"


def is_ours(name: str) -> bool:
    """Say whether an agent made a socket of that name."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def too_long(path: str) -> bool:
    """Say whether the system refuses a path as the address of a socket."""
    return len(os.fsencode(path)) > MAX_PATH_BYTES
