"""NVIDIA driver files for containers: libraries, programs, sockets and hooks."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.snapshot.edits import CdiEdits, CdiHook, MountEdit
from agent.snapshot.host_files import HostFiles

HOOK_PROGRAMS = ("/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)
LIBRARY_SUBFOLDERS = ("", "/vdpau")
DRIVER_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
DRIVER_SOCKETS = (
    "/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
    "/tmp/nvidia-mps",  # noqa: S108 - where the driver's service makes it
)
MAX_LIBRARIES = 256
_FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


class NvidiaDriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The loaded driver's files, by their paths on the host."""

    version: str
    hook: str  # the program that finishes a container
    libraries: tuple[str, ...]
    programs: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


def driver_edits(host: HostFiles, version: str | None) -> CdiEdits | None:
    """Return the edits for all containers with a card; `None` as in `read_driver_files`."""
    files = read_driver_files(host, version)
    return None if files is None else edits_of_files(files)


def read_driver_files(host: HostFiles, version: str | None) -> NvidiaDriverFiles | None:
    """Return the files of the loaded driver; `None` without its libraries or the toolkit's hook.

    Blocks; `HostFileError` if a folder of libraries cannot be read.
    """
    hook = next((path for path in HOOK_PROGRAMS if host.exists(path)), None)
    if not version or hook is None:
        return None
    libraries = [
        f"{folder}/{name}"
        for folder in (first + below for first in LIBRARY_FOLDERS for below in LIBRARY_SUBFOLDERS)
        for name in _library_names(host, folder)
        if name.endswith(f".so.{version}")
    ]
    if not any(path.endswith(f"/libcuda.so.{version}") for path in libraries):
        return None
    return NvidiaDriverFiles(
        version=version,
        hook=hook,
        libraries=tuple(sorted(libraries))[:MAX_LIBRARIES],
        programs=_existing_paths(host, (f"/usr/bin/{name}" for name in DRIVER_PROGRAMS)),
        sockets=_existing_paths(host, DRIVER_SOCKETS),
    )


def edits_of_files(files: NvidiaDriverFiles) -> CdiEdits:
    """Return CDI edits with libraries, programs, sockets and hooks of the driver."""
    folders = tuple(dict.fromkeys(path.rpartition("/")[0] for path in files.libraries))
    cuda = [path.rpartition("/")[0] for path in files.libraries if "/libcuda.so." in path]
    links = [f"--link=libcuda.so.1::{folder}/libcuda.so" for folder in cuda]
    return CdiEdits(
        env=(("NVIDIA_CTK_LIBCUDA_DIR", ":".join(cuda)), ("NVIDIA_VISIBLE_DEVICES", "void")),
        mounts=(
            *(_bind_mount(path, _FILE_OPTIONS) for path in (*files.libraries, *files.programs)),
            *(_bind_mount(path, _SOCKET_OPTIONS) for path in files.sockets),
        ),
        hooks=tuple(
            CdiHook(
                name="createContainer",
                path=files.hook,
                args=("nvidia-cdi-hook", *args),
                env=("NVIDIA_CTK_DEBUG=false",),
            )
            for args in (
                ("create-symlinks", *links),
                ("enable-cuda-compat", f"--host-driver-version={files.version}"),
                ("update-ldcache", *(f"--folder={folder}" for folder in folders)),
                ("disable-device-node-modification",),
            )
        ),
    )


def _bind_mount(path: str, options: tuple[str, ...]) -> MountEdit:
    return MountEdit(host_path=path, path=path, options=options)


def _existing_paths(host: HostFiles, paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if host.exists(path))


def _library_names(host: HostFiles, folder: str) -> tuple[str, ...]:
    """Return the names in a folder of libraries; empty if the folder is a link to another one."""
    top = folder.removesuffix("/vdpau")
    # /usr/lib64 may be a link to /usr/lib, and each library would be mounted twice
    return () if host.link(top) is not None else host.names(folder)
