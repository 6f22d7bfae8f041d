# SPDX-License-Identifier: Apache-2.0
"""What stands in for the reader's own things when run_pages.py runs a page: models, texts, and programs that are not at
hand where tests run. Each is made once and copied into the folders of the pages that name it."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import tiny_models

HERE = pathlib.Path(__file__).resolve().parent
MEASURE = ["--samples", "4", "--seq-len", "128", "--quiet"]


class StandIns:
    """`missing`: names that can't be had here; blocks with them are skipped."""

    def __init__(self, binary, root, work, built=None):
        """built: a folder with what was built of the projects below `root`, for a tool that was installed."""
        self.binary, self.root, self.work, self.of_projects = binary, root, work, built
        self.missing, self.lock = [], threading.Lock()
        demo = root / "tools/demo_data"
        self.makers = {
            "DIR": lambda path: self.copy_model(demo / "kjv-byte-1.7M", path),
            "text.txt": lambda path: shutil.copy(demo / "kjv_heldout_16k.txt", path),
            "calibration.txt": lambda path: path.write_bytes((demo / "kjv_calib.txt").read_bytes()[:16000]),
            "config.json": lambda path: tiny_models.write_config("llama", path),
            "tokenizer.json": lambda path: shutil.copy(demo / "kjv-byte-1.7M/tokenizer.json", path),
            "MOE": lambda path: tiny_models.write("qwen3_moe", path, demo / "kjv-byte-1.7M"),
            "VL": lambda path: tiny_models.write("qwen2_5_vl", path, demo / "kjv-byte-1.7M"),
            "DIR-fp8": lambda path: self.fp8("quantize", "--model", self.get("DIR"), "--dynamic", "--out", path, "--quiet"),
            "stats": lambda path: self.fp8("measure", "--model", self.get("DIR"), "--data", self.get("calibration.txt"), "--out", path, *MEASURE),
            "gelu_mul.so": lambda path: shutil.copy(self.built("package/extension/gelu_mul.so", "tests/package/extension"), path),
            "mnist.so": lambda path: shutil.copy(self.built("lib/mnist.so", "tools/examples/mnist"), path),
            "examples": lambda path: path.symlink_to(root / "tools/examples"),
            "fp8/lib": self.libraries,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FP8_", "PT_", "PL_", "QUANT_CONFIG", "COLUMNS"))}
        programs = [str(HERE / "stand_ins/bin"), str(binary.parent), str(pathlib.Path(sys.executable).parent)]
        self.environment = kept | {
            "PATH": os.pathsep.join([*programs, os.environ["PATH"]]), "PYTHONPATH": str(HERE / "stand_ins"),
            "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
        }
        if os.environ.get("FP8_TEST_VLLM"):  # the real one
            self.environment["PATH"] = os.pathsep.join([str(pathlib.Path(os.environ["FP8_TEST_VLLM"]).parent), self.environment["PATH"]])
            del self.environment["PYTHONPATH"]

    def built(self, name, project=None):
        if self.of_projects is not None and project is not None:
            return self.of_projects.resolve() / project / pathlib.Path(name).name
        return self.binary.parent.parent / name

    def libraries(self, path):
        """A folder, not its file: libraries find each other beside themselves."""
        if importlib.util.find_spec("torch") is None or not self.built("lib/libfp8_transformer_engine.so").exists():
            raise FileNotFoundError("torch, or the library")
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(self.built("lib"))

    def copy_model(self, source, path):
        """Without the answers of transformers: readers take every *.safetensors of a folder."""
        shutil.copytree(source, path, ignore=shutil.ignore_patterns("reference.safetensors"))

    def fp8(self, *arguments):
        subprocess.run([self.binary, *map(str, arguments)], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def get(self, name):
        path = self.work / name
        if not path.exists():
            self.makers[name](path)
        return path

    def give(self, name, folder):
        """Puts `name` into a page's folder; False if it can't be had here."""
        if name not in self.makers:
            raise KeyError(f"stand-in '{name}': allowed are {', '.join(self.makers)}")
        with self.lock:
            try:
                path = self.get(name)
            except FileNotFoundError:  # of something that another test builds
                self.missing.append(name)
                return False
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.resolve())
        elif path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copy(path, target)
        return True
