"""Stand-ins for libraries that come with a GPU: libcuda.so.1, libcublasLt.so.13, libcudnn.so.9, libamdhip64.so."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

STUBS = Path(__file__).with_name("stubs")
_MADE = tempfile.TemporaryDirectory(prefix="stand_ins")  # until this process ends


def build(folder: Path, name: str, *flags: str) -> Path:
    """The stand-in for the library `name`, in `folder`, where a process finds it by LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.copy(_built(name, *flags), folder / name)


@functools.cache
def _built(name: str, *flags: str) -> Path:
    made = Path(tempfile.mkdtemp(dir=_MADE.name)) / name
    run = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *flags]
    source = STUBS / f"{name.partition('.')[0]}.cpp"
    subprocess.run([*run, source, f"-Wl,-soname,{name}", "-o", made, "-ldl", "-lpthread"], check=True)
    return made


def with_cublaslt(folder: Path, *flags: str, library: str = "libcublasLt.so.13") -> Path:
    """A folder with cuBLASLt, or another vendor's library, and the driver."""
    build(folder, library, *flags)
    build(folder, "libcuda.so.1")
    return folder


class StandIn:
    """What a stand-in that this process has loaded, or loads, was asked for."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.stub_log.restype = ctypes.c_char_p
        self.reset()

    def reset(self, current: int = -1, failing: int = 0) -> None:
        """Begin again in the context of a device (-1: none, 9: a foreign one of device 1); `failing`: to enter one."""
        self.library.stub_clear()
        self.library.stub_set(b"set", ctypes.c_int64(failing))
        self.library.stub_enter(current)

    def log(self) -> list[str]:
        text: bytes = self.library.stub_log()
        return text.decode().splitlines()

    def state(self) -> tuple[int, int]:
        """The thread's device and its mode of stream captures."""
        return self.library.stub_current(), self.library.stub_mode()
