# SPDX-License-Identifier: Apache-2.0
"""Runs of the fp8 program in processes that are forked from one which has loaded LibTorch (started_fp8.cpp): a third of a second less each."""

import atexit
import os
import pathlib
import socket
import subprocess
import tempfile

_programs = {}  # by binary


def _started(binary):
    """The socket of the program beside `binary`, started once; None where there is none."""
    program = pathlib.Path(binary).resolve().with_name("started_fp8")
    if program not in _programs:
        _programs[program] = None
        if program.exists():
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                child = subprocess.Popen([program, str(its.fileno())], pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
            _programs[program] = mine
            atexit.register(lambda: (mine.close(), child.wait()))
    return _programs[program]


def run(binary, *arguments):
    """subprocess.CompletedProcess, with its output as text, of a command that needs LibTorch."""
    words = [str(word) for word in arguments]
    program = _started(binary)
    if program is None:
        return subprocess.run([binary, *words], capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        out, err = pathlib.Path(folder) / "out", pathlib.Path(folder) / "err"
        variables = [f"{name}={value}" for name, value in os.environ.items()]
        fields = [os.getcwd(), str(out), str(err), str(len(variables)), *variables, *words]
        program.send(b"".join(field.encode() + b"\0" for field in fields))
        status = int.from_bytes(program.recv(4), "little")
        return subprocess.CompletedProcess([binary, *words], os.waitstatus_to_exitcode(status), out.read_text(), err.read_text())
