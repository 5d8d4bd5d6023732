"""Serve for a person with a plug-in: the life of a pod each second, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from tests.runtime.plugin_calls import Failed
from tests.runtime.runtime import Runtime
from tests.runtime.versions import CONTAINERD_2_3, VERSIONS, Version


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _play(runtime: Runtime, annotations: dict[str, str]) -> None:
    number = 0
    while True:
        number += 1
        pod = runtime.pod(f"pod-{number}", annotations=annotations)
        try:
            await runtime.run_pod(pod)
            container = await runtime.create(pod, "main")
            await runtime.start(container)
            _say(f"{pod.message.name}: {container.spec}, missed: {container.missed}")
            await runtime.stop_pod(pod)
            await runtime.remove_pod(pod)
        except Failed as error:
            _say(f"{pod.message.name}: {error}")
        for broken in runtime.take_broken():
            _say(f"broken: {broken}")
        await asyncio.sleep(1)


async def _serve(socket: Path, version: Version, annotations: dict[str, str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runtime = Runtime(socket.parent, version)
    runtime.socket = socket
    async with runtime:
        _say(f"{version.runtime} {version.release}: {socket}")
        play = asyncio.ensure_future(_play(runtime, annotations))
        await stop.wait()
        play.cancel()


def main() -> int:
    """Serve until a signal comes."""
    releases = {f"{one.runtime}-{one.release}": one for one in VERSIONS}
    parser = argparse.ArgumentParser(prog="python -m tests.runtime", description=__doc__)
    parser.add_argument("socket", type=Path)
    parser.add_argument("--version", choices=sorted(releases))
    parser.add_argument("--annotation", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    pairs = (text.partition("=") for text in options.annotation)
    annotations = {key: value for key, _, value in pairs}
    version = releases.get(options.version or "", CONTAINERD_2_3)
    asyncio.run(_serve(options.socket, version, annotations))
    return 0


if __name__ == "__main__":
    sys.exit(main())
