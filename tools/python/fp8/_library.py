# SPDX-License-Identifier: Apache-2.0
"""The C++ library: where it lies, and whether it fits the torch of this process."""

import functools
import os
import pathlib
import sys

TORCH = "2.13"  # the minor version that the library is built with
_NAME = "libfp8_transformer_engine.so.0"


def folder() -> pathlib.Path:
    """Of the libraries: lib/ of the installed package, or of the build folder that this package is linked into."""
    here = pathlib.Path(__file__).parent
    for place in (here / "lib", here.parent.parent / "lib"):
        if (place / _NAME).exists():
            return place
    return here / "lib"


def _misfit() -> str:
    """Why the library must not be loaded into this process; "": it may be."""
    import torch
    if not torch.__version__.startswith(TORCH + "."):
        return (f"found torch {torch.__version__}, expected {TORCH}, which fp8's libraries are built with: "
                f"pip install 'torch>={TORCH},<{_next_minor()}'")
    if torch.version.cuda and torch.cuda.is_available():
        return ("found a GPU that this build of torch uses, and a process has one kind of accelerator: hide it (CUDA_VISIBLE_DEVICES=), or "
                "install the CPU build (pip install torch --index-url https://download.pytorch.org/whl/cpu)")
    if not (folder() / _NAME).exists():
        return f"found no {_NAME} in {folder()}: install fp8-toolkit again"
    return ""


def _next_minor() -> str:
    major, minor = TORCH.split(".")
    return f"{major}.{int(minor) + 1}"


@functools.lru_cache(maxsize=1)
def load() -> str:
    """Loads the library once. Returns why it is not there; "": it is."""
    import torch
    try:
        reason = _misfit()
        if not reason:
            torch.ops.load_library(str(folder() / _NAME))
        return reason
    except Exception as error:  # noqa: BLE001: `import torch` goes on without it, and the first use says why
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def require() -> None:
    """The library, or a RuntimeError that says why it is not there."""
    reason = load()
    if reason:
        raise RuntimeError(f"the hpu device is not available: {reason}")


def turned_off() -> bool:
    """FP8_AUTOLOAD=0 leaves torch as it is until fp8 is imported."""
    return os.environ.get("FP8_AUTOLOAD", "1").lower() in ("0", "false", "off")


def torch_libraries() -> str:
    """The folder of torch's libraries, found without importing it; "": this Python has no torch."""
    import importlib.util
    if "torch" in sys.modules:
        return str(pathlib.Path(sys.modules["torch"].__file__ or "").parent / "lib")
    spec = importlib.util.find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return str(pathlib.Path(places[0]) / "lib") if places else ""
