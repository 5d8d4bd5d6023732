"""Images of a static busybox, as a tar in the OCI layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

NAME = "localhost/busybox:test"  # no registry: it is only ever imported
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
# what asks for cards as the images of CUDA do
ASKING = "localhost/asking:test"
ASKING_ENV = ("NVIDIA_VISIBLE_DEVICES=all",)
APPLETS = ("sh", "sleep", "cat", "mknod", "stat", "env", "ls", "readlink", "dd", "true", "kill")
FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp")


def write(path: Path, busybox: Path) -> None:
    """Write a tar with both images; equal programs give equal bytes."""
    layer = _layer(busybox)
    blobs: dict[str, bytes] = {}
    entries = [_image(blobs, layer, name, env) for name, env in ((NAME, ()), (ASKING, ASKING_ENV))]
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        _add(tar, "index.json", json.dumps(index).encode())
        for digest, content in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", content)


def _image(
    blobs: dict[str, bytes], layer: bytes, name: str, env: tuple[str, ...]
) -> dict[str, object]:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin", *env], "Entrypoint": ["/bin/sleep", "inf"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _blob(blobs, CONFIG, json.dumps(config).encode()),
        "layers": [_blob(blobs, LAYER, layer)],
    }
    entry = _blob(blobs, MANIFEST, json.dumps(manifest).encode())
    platform = {"architecture": "amd64", "os": "linux"}
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    return entry | {"platform": platform, "annotations": names}


def _layer(busybox: Path) -> bytes:
    bytes_io = io.BytesIO()
    with tarfile.open(fileobj=bytes_io, mode="w") as tar:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        _add(tar, "bin/busybox", busybox.read_bytes(), mode=0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return bytes_io.getvalue()


def _blob(blobs: dict[str, bytes], kind: str, content: bytes) -> dict[str, object]:
    digest = _digest(content)
    blobs[digest] = content
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
