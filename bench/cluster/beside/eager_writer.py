"""Peer of `cluster.first_device`: `... KUBECONFIG NAME BODY`; libraries first, then one apply.

It looks at no hardware: the Device is read from a file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kubernetes import client, config

from agent.kube.api import APPLY_PATCH_TYPE, FIELD_MANAGER
from agent.kube.resources import DEVICES
from bench.startup import EAGER


def main() -> None:
    """Load everything, apply, end."""
    kubeconfig, name, body = sys.argv[1:4]
    exec(EAGER)
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call] # it is so
    client.CustomObjectsApi().patch_cluster_custom_object(
        DEVICES.group,
        DEVICES.version,
        DEVICES.plural,
        name,
        json.loads(Path(body).read_text()),
        field_manager=FIELD_MANAGER,
        force=True,
        _content_type=APPLY_PATCH_TYPE,
    )


if __name__ == "__main__":
    main()
