"""The layer `runtime`: the interpreter, its library, and every C library that a file of it needs.

The C libraries are put into the folder that the dynamic loader searches by itself, so that the
image needs neither `ldconfig` nor its cache.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from daemonset.image.tree import AssemblyError, copy_file, walk, write_file

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
EXECUTABLE = Path(f"usr/local/bin/python{VERSION}")
STANDARD_LIBRARY = Path(f"usr/local/lib/python{VERSION}")
LIBRARY_FOLDER = Path("usr/lib", str(sysconfig.get_config_var("MULTIARCH") or ""))
# what no import of the agent reaches: tests, terminals, debuggers, mail, sound, old protocols,
# other ways to install
LEFT_OUT = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter"),
    *("turtledemo", "turtle.py", "ensurepip", "lib2to3", "distutils", "pydoc_data", "pydoc.py"),
    *("venv", "unittest", "doctest.py", "curses", "dbm", "sqlite3", "xmlrpc"),
    *("antigravity.py", "this.py", "LICENSE.txt", "EXTERNALLY-MANAGED", "sitecustomize.py"),
    *("_pydecimal.py", "_pyio.py", "pickletools.py", "msilib", "pdb.py", "bdb.py", "cmd.py"),
    *("code.py", "codeop.py", "profile.py", "cProfile.py", "pstats.py", "trace.py"),
    *("imaplib.py", "smtplib.py", "smtpd.py", "nntplib.py", "telnetlib.py", "ftplib.py"),
    *("poplib.py", "mailbox.py", "mailcap.py", "cgi.py", "cgitb.py", "asyncore.py", "asynchat.py"),
    *("aifc.py", "sunau.py", "wave.py", "chunk.py", "sndhdr.py", "imghdr.py", "webbrowser.py"),
    *("pyclbr.py", "modulefinder.py", "zipapp.py", "tabnanny.py", "xdrlib.py", "crypt.py"),
    *("nis.py", "pipes.py", "uu.py", "sched.py", "symtable.py", "rlcompleter.py"),
}
LEFT_OUT_PATTERN = re.compile(
    r"config-.*|.*\.(?:a|pyc|exe)|_?(?:test|xxtest|tkinter|curses|sqlite3|dbm|gdbm|crypt|nis)[_a-z]*\.(?:cpython|abi3).*"
    r"|(?:_xx|xx|readline|ossaudiodev|audioop|spwd|_lsprof|_codecs_)[_a-z0-9]*\.cpython.*"
)
# loaded by name only: by pyudev, by threads that end, by libraries of devices below /host
LOADED_BY_NAME = (
    *("libudev.so.1", "libgcc_s.so.1", "libstdc++.so.6", "libm.so.6", "libresolv.so.2"),
    *("libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"),
)
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)|^\s*(/\S+) \(0x", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
ACCOUNTS = {
    "passwd": "root:x:0:0::/tmp:/nonexistent\nnonroot:x:65532:65532::/tmp:/nonexistent\n",
    "group": "root:x:0:\nnonroot:x:65532:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# where a container mounts, also below a read-only root
MOUNT_POINTS = (
    *("dev", "etc/xpu-agent", "etc/xpu-scheduler", "host", "proc", "run/xpu-agent", "sys"),
    *("var/lib/kubelet", "var/lib/xpu-agent", "var/run/cdi", "var/run/nri"),
)


def copy_interpreter(root: Path) -> None:
    """Copy the interpreter that runs this, and its standard library without what is left out."""
    copy_file(Path(sys.base_prefix, "bin", EXECUTABLE.name), root / EXECUTABLE)
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        root / STANDARD_LIBRARY,
        ignore=_ignore,
    )
    for name, text in ACCOUNTS.items():
        write_file(root / "etc" / name, text)
    for folder in MOUNT_POINTS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    if Path("/etc/os-release").exists():
        copy_file(Path("/etc/os-release"), root / "etc/os-release")


def strip_debug_data(root: Path, files: Iterable[Path]) -> None:
    """Remove the debug data that an interpreter of no package may have, where binutils are."""
    modules = root / STANDARD_LIBRARY / "lib-dynload"
    paths = [str(path) for path in (*files, *sorted(modules.glob("*.so")))]
    if strip := shutil.which("strip"):
        subprocess.run([strip, "--strip-debug", *paths], check=True)


def _ignore(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name in LEFT_OUT or LEFT_OUT_PATTERN.fullmatch(name)}


def copy_shared_libraries(root: Path, *others: Path) -> dict[Path, Path]:
    """Copy what all binaries below `root` and `others` need, and what is loaded by name.

    Return the file of this machine for each copy. Raises `AssemblyError` if one is missing.
    """
    binaries = [path for tree in (root, *others) for path in walk(tree) if _is_binary(path)]
    sources = dict(_needed_by(binaries))
    folder = Path(sources.get("libc.so.6", "/usr/lib/libc.so.6")).resolve().parent
    for name in LOADED_BY_NAME:
        if not (folder / name).exists():
            raise AssemblyError(f"{name} is not in {folder}: install its package")
        sources[name] = folder / name
    sources |= dict(_needed_by(sources.values()))
    copies = {}
    for name, source in sources.items():
        is_loader = name.startswith("/")
        target = root / (name.lstrip("/") if is_loader else LIBRARY_FOLDER / name)
        copy_file(source, target)
        copies[target] = source.resolve()
    return copies


def _needed_by(binaries: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the name and the file of each shared library; the loader has its path as its name."""
    paths = [str(path) for path in binaries]
    output = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    bundled = {Path(path).name for path in paths}  # a wheel brings some itself
    if missing := set(_MISSING.findall(output)) - bundled:
        raise AssemblyError(f"not found by the dynamic loader: {', '.join(sorted(missing))}")
    for name, path, loader in _NEEDED.findall(output):
        if loader:
            yield loader, Path(loader)
        elif name not in bundled or "/" in name:
            yield name, Path(path)


def _is_binary(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def site_folder(root: Path) -> Path:
    """Return the folder, below the root, in which this interpreter looks for distributions.

    Debian's own interpreter has another name for it.
    """
    return root / STANDARD_LIBRARY / _site_name()


@cache
def _site_name() -> str:
    base = str(Path(sys.base_prefix, "bin", EXECUTABLE.name))
    code = "import site; print(site.getsitepackages()[0])"
    result = subprocess.run([base, "-I", "-c", code], capture_output=True, text=True, check=True)
    return Path(result.stdout.strip()).name


def compile_modules(root: Path) -> None:
    """Compile all modules; the image is read-only, so that the interpreter does not check them."""
    command = [
        *(sys.executable, "-I", "-m", "compileall", "-q", "-j", "0"),
        *("-s", str(root), "-p", "/", "--invalidation-mode", "unchecked-hash", str(root)),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
