# SPDX-License-Identifier: Apache-2.0
"""The command `fp8`: the C++ program of this package. Commands on files need no torch; the others find torch's libraries in
this Python's packages, without importing it."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys

from fp8 import _library


def _torch() -> tuple[str, str]:
    """(the folder of this Python's torch or "", why the program can't use it or "")"""
    spec = importlib.util.find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places or not (pathlib.Path(places[0]) / "lib" / "libtorch_cpu.so").exists():
        return "", "this Python has no torch, which commands that compute need"
    version = pathlib.Path(places[0]) / "version.py"
    found = re.search(r"__version__ = '([^']+)'", version.read_text()) if version.exists() else None
    if found and not _library.fits(found[1]):
        return places[0], f"this Python has torch {found[1]}, and commands that compute need {_library.TORCH}"
    return places[0], ""


def main() -> None:
    program, environment = _library.folder().parent / "bin" / "fp8", dict(os.environ)
    if not program.exists():
        sys.exit(f"fp8: error: found no program {program}: install fp8-toolkit again")
    torch, reason = _torch()
    beside = torch and pathlib.Path(torch).resolve() == (_library.folder().parent.parent / "torch").resolve()
    if "FP8_LIBTORCH" in environment:
        reason = ""
    elif torch and (reason or not beside):  # one of another version fails at once, and not at its first missing function
        environment["FP8_LIBTORCH"] = torch
    command = [str(program), *sys.argv[1:]]
    if not reason:
        os.execve(program, command, environment)
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to both
    child = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    code = child.wait()
    if code == 1:
        print(f"fp8: note: {reason}: {_library.INSTALL_TORCH}", file=sys.stderr)
    sys.exit(code if code >= 0 else 128 - code)
