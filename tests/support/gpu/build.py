"""Build the library that takes the place of CUDA: g++ compiles `native/`, and a stub of all else that torch calls.

No CUDA toolkit is needed: the headers come with the packages that torch installs.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).with_name("native")
BUILDS = Path(__file__).parents[3] / "build" / "gpu-stub"
UNCHECKED = "unchecked.txt"
"""The operations of aten for which torch does not compare the devices of arguments, because their kernels do."""
LIBRARY = "libcuda.so.1"
"""Its other names are links: the loader takes them for the one library, which has one state."""

_WANTED = re.compile(r"(__)?(cuda[A-Z]|cublas|cudnn|cupti|cusolver|cusparse|cufft|curand|nccl)\w*$")
_NOT_WANTED = ("nvrtc", "cuFile", "nvml", "nvshmem")
"""The real libraries serve these without a GPU, `driver.cpp` does, or nobody calls them."""
_SILENT = re.compile(
    "Destroy|Create|Set(Stream|Workspace|MathMode|PointerMode|Attribute)|GetStream|Preference|Layout|Descriptor"
)
"""Functions of the libraries that launch nothing."""

_NCCL_INVALID_USAGE = 5


class CannotBuild(Exception):
    """What the machine lacks, and what installs it."""


class DoesNotCompile(Exception):
    """The errors of g++: the sources do not fit this compiler, torch or CUDA."""


def library_folder() -> Path:
    """Return the folder of the library for the installed torch; build it if it is not there.

    Raises:
        CannotBuild: without g++ and nm, or without a CUDA build of torch.
        DoesNotCompile: g++ rejects the sources.
    """
    version, cuda = _versions()
    if missing := [name for name in ("g++", "nm") if shutil.which(name) is None]:
        raise CannotBuild(f"the stub of CUDA needs {' and '.join(missing)}: apt-get install g++ binutils")
    folder = BUILDS / f"{version}-{_digest()}"
    if not folder.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILDS) as aside:
            made = Path(aside, "made")
            _build(made, cuda)
            _move(made, folder)
    return folder


def _versions() -> tuple[str, str]:
    """Return the version of torch, and the major version of its CUDA. Importing torch would take seconds."""
    text = (_package("torch") / "version.py").read_text()
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda\b.*= '(\d+)\.", text, re.MULTILINE)
    if version is None or cuda is None:
        raise CannotBuild("the stub of CUDA needs a CUDA build of torch: uv pip install torch, from PyPI")
    return version[1], cuda[1]


def _digest() -> str:
    sources = [Path(__file__), *sorted(NATIVE.iterdir())]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise CannotBuild(f"the stub of CUDA needs {name}: uv pip install {name}")
    return Path(spec.submodule_search_locations[0])


def _build(folder: Path, cuda: str) -> None:
    folder.mkdir()
    source = folder / "all.cpp"  # g++ reads the headers once
    source.write_text("".join(f'#include "{path}"\n' for path in sorted(NATIVE.glob("*.cpp"))) + _stubs())
    command = ["g++", "-O1", "-shared", "-fPIC", "-pthread", "-std=c++17", "-w", f"-Wl,-soname,{LIBRARY}"]
    command += [f"-I{include}" for include in [NATIVE, *_includes(cuda)]]
    done = subprocess.run(
        [*command, source, "-o", folder / LIBRARY, "-ldl"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DoesNotCompile(f"the stub of CUDA did not compile:\n{done.stderr}")
    for link in ("libcuda.so", "libnvidia-ml.so.1"):
        (folder / link).symlink_to(LIBRARY)
    (folder / UNCHECKED).write_text("\n".join(_unchecked()))


def _includes(cuda: str) -> list[Path]:
    """Return the folders of CUDA's headers: torch's, and Triton's for what those include.

    Triton's may be of another version of CUDA, in which structs such as `cudaDeviceProp` differ.
    """
    nvidia = _package("torch").parent / "nvidia"
    folders = [nvidia / f"cu{cuda}" / "include", nvidia / "cuda_runtime" / "include"]
    return [
        *[folder for folder in folders if (folder / "driver_types.h").exists()],
        _package("triton") / "backends" / "nvidia" / "include",
    ]


def _stubs() -> str:
    """Return the source of all functions that torch's libraries call and `native/` does not have."""
    written = {
        name
        for path in NATIVE.glob("*.cpp")
        for name in re.findall(r"^API.*?\b(\w+)\(", path.read_text(), re.M)
    }
    lines = [
        'static int launch(const char *name, int result) { stub::record("launch", name); return result; }'
    ]
    for name in sorted(_symbols() - written):
        is_silent = name.startswith(("cuda", "__cuda", "cupti")) or _SILENT.search(name)
        result: int | str = _NCCL_INVALID_USAGE if name.startswith("nccl") else 0
        if not is_silent:
            result = f'launch("{name}", {result})'
        lines.append(f"API int {name}(...) {{ return {result}; }}")
    return "\n".join(lines) + "\n"


def _symbols() -> set[str]:
    """Return what the libraries of torch want from CUDA's. Versions of symbols do not matter to a preloaded library."""
    found: set[str] = set()
    for library in sorted((_package("torch") / "lib").glob("lib*.so")):
        command = ["nm", "-D", "--undefined-only", library]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        found |= {line.split()[-1].partition("@")[0] for line in lines if line.strip()}
    return {name for name in found if _WANTED.match(name) and not name.startswith(_NOT_WANTED)}


def _unchecked() -> list[str]:
    """Return the operations with `device_check: NoCheck` in the file from which torch's code is generated."""
    path = _package("torchgen") / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = re.split(r"^- func: ", path.read_text(), flags=re.MULTILINE)[1:]
    return [entry.partition("(")[0] for entry in entries if "  device_check: NoCheck" in entry]


def _move(made: Path, folder: Path) -> None:
    """Give a build its name, unless another process has built the same meanwhile."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise


if __name__ == "__main__":
    print(library_folder())
