"""Serve for a person with kubectl, and for benches, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import yaml

from tests.apiserver.server import ApiServer


def main() -> int:
    """Serve; print where, and the kubeconfig, on one line each."""
    parser = argparse.ArgumentParser(prog="python -m tests.apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dir", type=Path, help="where kubeconfig, CA and tokens are written")
    parser.add_argument("--objects", type=Path, nargs="*", default=[], help="YAML files")
    parser.add_argument("--nodes", nargs="*", default=["node-a"])
    parser.add_argument("--roles", type=Path, help="a ClusterRole YAML; default: all is allowed")
    parser.add_argument("--no-rbac", action="store_true", help="allow all, whatever --roles says")
    parser.add_argument("--no-validation", action="store_true")
    options = parser.parse_args()
    objects = [
        body
        for path in options.objects
        for body in yaml.safe_load_all(path.read_text())
        if body is not None
    ]
    if options.dir is not None:
        options.dir.mkdir(parents=True, exist_ok=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with ApiServer(
        nodes=options.nodes,
        objects=objects,
        roles=None if options.no_rbac else options.roles,
        validation=not options.no_validation,
        port=options.port,
        directory=options.dir,
    ) as api:
        for name, value in (
            ("url", api.url),
            ("kubeconfig", api.kubeconfig),
            ("agent kubeconfig", api.agent_kubeconfig),
        ):
            sys.stdout.write(f"{name}: {value}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    sys.exit(main())
