# SPDX-License-Identifier: Apache-2.0
"""The command `fp8`: the C++ program of this package. Commands on files need no torch; the others find torch's libraries in
this Python's packages."""

import os
import pathlib
import sys

from fp8 import _library


def main() -> None:
    here = pathlib.Path(__file__).parent
    program = next((place for place in (here / "bin" / "fp8", here.parent.parent / "bin" / "fp8") if place.exists()), None)
    if program is None:
        sys.exit(f"fp8: error: found no program in {here / 'bin'}: install fp8-toolkit again")
    environment = dict(os.environ)
    libraries = _library.torch_libraries()
    if libraries and pathlib.Path(libraries).resolve() != (here.parent / "torch" / "lib").resolve():
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, (libraries, environment.get("LD_LIBRARY_PATH"))))
    os.execve(program, [str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
