# SPDX-License-Identifier: Apache-2.0
"""The C++ library: where it lies, whether it fits the torch of this process, and why not."""

import functools
import os
import pathlib
import struct
import sys
import typing

TORCH = "2.13"  # the minor version that the library is built with
INSTALL_TORCH = "pip install 'torch>=2.13,<2.14' --index-url https://download.pytorch.org/whl/cpu"
_NAME = "libfp8_transformer_engine.so.0"
_MOST_KEPT = 512 << 20  # bytes of freed tensors of 4 MiB and more: training makes the same sizes in each step
_AGAIN = "install fp8-toolkit again, with pip's --force-reinstall"
_PLACES = [pathlib.Path(place) for place in sys.modules["fp8"].__path__]  # two of an editable installation


def folder() -> pathlib.Path:
    """Of the libraries: lib/ of the installed package, or of the build folder that this package is linked into."""
    places = [place for here in _PLACES for place in (here / "lib", here.parent.parent / "lib")]
    return next((place for place in places if (place / _NAME).exists()), places[0])


def fits(version: str) -> bool:
    """Whether that version of torch is one of TORCH."""
    return version.split(".")[:2] == TORCH.split(".")


def _end(file: typing.BinaryIO) -> int:
    """Where an ELF file ends by its own headers: to map one that was cut off ends the process. 0: it is none."""
    header = file.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\2\1":
        return 0
    program, section = struct.unpack("<QQ", header[32:48])
    size, count, section_size, sections = struct.unpack("<4H", header[54:62])
    file.seek(program)
    segments = file.read(size * count)
    if len(segments) < size * count:
        return sys.maxsize
    return max([section + section_size * sections] + [a + n for _, a, _, _, n, _, _ in struct.iter_unpack("<Q6Q", segments)])


def _damage() -> str:
    """The library that is missing or cut off; "": none is."""
    if not (folder() / _NAME).exists():
        return f"found no {_NAME} in {folder()}: {_AGAIN}"
    for path in sorted(folder().glob("libfp8_*.so.0")):
        with path.open("rb") as file:
            end = _end(file)
        if not 0 < end <= path.stat().st_size:
            return f"found a damaged {path} ({path.stat().st_size} bytes): {_AGAIN}"
    return ""


def _other_copy() -> str:
    """Where another copy of the library was loaded from; "": nowhere."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libfp8_runtime.so" in line}
    mine = os.path.realpath(folder())
    return next((path for path in sorted(loaded) if os.path.dirname(os.path.realpath(path)) != mine), "")


def _misfit() -> str:
    """Why the library must not be loaded into this process; "": it may be."""
    import torch
    if not fits(torch.__version__):
        return f"found torch {torch.__version__}, expected {TORCH}, which fp8's libraries are built with: {INSTALL_TORCH}"
    # A process has one kind of accelerator: with two, each backward ends in an error. CUDA makes room for hpu where it sees no GPU.
    built = {"rocm": torch.version.hip, "xpu": getattr(torch.version, "xpu", None), "cuda": torch.version.cuda and torch.cuda.device_count()}
    if other := next((name for name, found in built.items() if found), ""):
        hint = "hide the GPU (CUDA_VISIBLE_DEVICES=), or " if other == "cuda" else ""
        return f"found a torch that computes on {other}, and a process has one kind of accelerator: {hint}{INSTALL_TORCH} --force-reinstall"
    if copy := _other_copy():
        return f"found {copy} loaded already, expected that of {folder()}: load one of the two"
    return _damage()


@functools.lru_cache(maxsize=1)
def load() -> str:
    """Loads the library once. Returns why it is not there; "": it is."""
    import torch
    try:
        if reason := _misfit():
            return reason
        torch.ops.load_library(str(folder() / _NAME))
        if not hasattr(torch.ops.fp8, "describe"):
            install = f"; a torch for the CPU alone: {INSTALL_TORCH} --force-reinstall" if torch.version.cuda else ""
            return f"the library registered nothing, for the reason that its line on stderr gives{install}"
        torch.ops.fp8.keep_large_blocks(_MOST_KEPT)
        torch._C._accelerator_hooks_device_count()  # FP8_HPU_DEVICES
        return ""
    except Exception as error:  # noqa: BLE001: `import torch` goes on without it, and the first use says why
        return sentence(error) + (f": {_AGAIN}" if isinstance(error, OSError) else "")


def sentence(error: BaseException) -> str:
    """The first line of what went wrong: torch wraps what the loader says."""
    return (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]


def require() -> None:
    """The library, or a RuntimeError that says why it is not there."""
    if reason := load():
        raise RuntimeError(f"the hpu device is not available: {reason}")
