"""A containerd of a test's own: its folders, sockets, cgroups; killed and started again at will."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

from tests.containerd.runtime import image, leavings
from tests.containerd.runtime.apart import Apart, lacking_rights
from tests.containerd.runtime.cri import Cri
from tests.containerd.runtime.programs import missing, programs
from tests.patience import PATIENCE_S

REQUEST_S = 10  # until the runtime drops an agent that does not answer
STOP_S = 10.0  # then it is killed

CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
temp = "{folder}/temp"
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{folder}/c.sock"
[ttrpc]
  address = "{folder}/t.sock"
[debug]
  level = "info"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_tcp_service = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  enable_cdi = {cdi}
  cdi_spec_dirs = ["{folder}/cdi"]
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{folder}/cni/bin"
  conf_dir = "{folder}/cni/conf"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  Root = "{folder}/runc"
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
  BinaryName = "{runc}"
  Root = "{folder}/runc"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{folder}/nri.sock"
  plugin_path = "{folder}/nri/plugins"
  plugin_config_path = "{folder}/nri/conf"
  plugin_request_timeout = "{request_s}s"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""


class Containerd:
    """One runtime. `kill` and `start` again what a crash leaves; `close` leaves nothing behind."""

    def __init__(self, *, takes_cdi: bool = True) -> None:
        # short, for sockets; not in /tmp, of which its containers have another
        self.folder = Path(tempfile.mkdtemp(prefix="xr", dir="/var/tmp"))
        self.nri_socket = self.folder / "nri.sock"
        self.cdi = self.folder / "cdi"
        self.cgroup = f"/xpu-{os.getpid()}-{self.folder.name}"  # on the host, above all its pods
        self.apart = Apart(self.folder, self.cgroup)
        self._programs = programs()
        self._process: subprocess.Popen[bytes] | None = None
        self.cri = Cri(self.folder / "c.sock")
        self._config = self.folder / "config.toml"
        self._config.write_text(
            CONFIG.format(
                folder=self.folder,
                image=image.NAME,
                runc=self._programs["runc"],
                request_s=REQUEST_S,
                cdi=str(takes_cdi).lower(),
            )
        )
        for below in ("cdi", "cni/conf", "nri/plugins", "nri/conf"):
            (self.folder / below).mkdir(parents=True)

    @property
    def log(self) -> str:
        """What the runtime said so far, of all its lives."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; images and pods of its lives before are there."""
        # PATH: containerd looks for its shim there
        env = os.environ | {"PATH": f"{self._programs.folder}:{os.environ.get('PATH', '')}"}
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.apart.prefix, self._programs["containerd"], "--config", self._config],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._until_it_answers()

    def import_image(self) -> None:
        """Make the images known, from a file."""
        path = self.folder / "image.tar"
        image.write(path, self._programs["busybox"])
        ctr, socket = self._programs["ctr"], self.folder / "c.sock"
        how = ("-n", "k8s.io", "images", "import", "--snapshotter", "native")
        subprocess.run(
            [*self.apart.prefix, ctr, "-a", socket, *how, path],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        path.unlink()

    def kill(self) -> None:
        """End it as a crash does; its containers live on."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Remove the pods, end the runtime, and whatever is still left of either."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(grpc.RpcError):
                self.cri.remove_all()
            self._end(signal.SIGTERM)
        self.cri.close()
        leavings.remove(self.folder, self.cgroup)
        self.apart.close()
        shutil.rmtree(self.folder)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_S)
        self._process = None

    def _until_it_answers(self) -> None:
        assert self._process is not None
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            if self._process.poll() is not None:
                break
            if self.cri.answers() and self.nri_socket.exists():
                return
            time.sleep(0.02)
        raise RuntimeError(f"containerd does not answer:\n{self.log[-2000:]}")


def cannot_run() -> str:
    """Say why not on this machine; empty if it can."""
    if platform.machine() != "x86_64":
        return f"the image is for x86_64, this machine is {platform.machine()}"
    if not Path("/sys/fs/cgroup/devices").is_dir():
        return "what is looked at is in files of cgroup 1, which this machine has not mounted"
    return missing() or lacking_rights()


@contextlib.contextmanager
def containerd(*, takes_cdi: bool = True) -> Iterator[Containerd]:
    """A runtime with the images imported; without CDI as containerd 1.7 is by default."""
    runtime = Containerd(takes_cdi=takes_cdi)
    try:
        runtime.start()
        runtime.import_image()
        yield runtime
    finally:
        runtime.close()
