"""A kubelet in a process of its own: `... TOKEN_FILE PODS_FILE`, which is a JSON list of pods.

It prints its port and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.fault.kubelet.fake_http import FakeKubelet


async def serve(token: str, pods: list[object], folder: Path) -> None:
    """Serve for ever."""
    kubelet = FakeKubelet(folder)
    kubelet.users[token] = "agent"
    body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}
    kubelet.bodies["/pods/"] = msgspec.json.encode(body)
    async with kubelet.running():
        sys.stdout.write(f"{kubelet.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Serve until SIGTERM."""
    token, pods = (Path(path).read_bytes() for path in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(serve(token.decode().strip(), msgspec.json.decode(pods), Path(folder)))


if __name__ == "__main__":
    main()
