# SPDX-License-Identifier: Apache-2.0
"""`import torch` and the device: there, turned off, or kept away for a reason that the first use gives."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT

LIBRARY = "libfp8_transformer_engine.so.0"
# What a script sees of a device that is not there: torch works, and each use says why.
SEEN = """
import json, torch
def said(use):
    try:
        return str(use())
    except RuntimeError as error:
        return str(error)
x = torch.ones(2, requires_grad=True)
(x * x).sum().backward()
print(json.dumps({"available": torch.hpu.is_available(), "count": torch.hpu.device_count(), "why": torch.hpu.why_unavailable(),
                  "uses": [said(lambda: torch.ones(1, device="hpu")), said(lambda: torch.nn.Linear(1, 1).to("hpu"))],
                  "grad": x.grad.tolist(), "here": torch.accelerator.is_available()}))
"""
# sitecustomize: what `import torch` finds when it comes to this package.
DISGUISE = """
import fp8._autoload as backend
inner = backend.autoload
def autoload():
    import torch
    {}
    inner()
backend.autoload = autoload
"""


# Imports torch once, and forks: each case is a process in which `import torch` comes to its entry points.
FORKS = """
import json, os, sys, traceback, torch
for line in sys.stdin:
    case = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(case["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            sys.path[:0] = case["places"]
            for name in case["before"]:
                __import__(name)
            torch._import_device_backends()
            exec(case["code"], {})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def fresh(code, *places, python=sys.executable, **environment):
    """The standard output of a new process whose modules come from `places` first."""
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """As fresh(), without the seconds of `import torch`."""
    out = tmp_path_factory.mktemp("forked") / "out"
    environment = {**os.environ, "PYTHONPATH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as server:
        def run(code, *places, before=()):
            out.write_text("")
            case = {"code": code, "places": [str(place) for place in places], "before": before, "out": str(out)}
            server.stdin.write(json.dumps(case) + "\n")
            server.stdin.flush()
            status = int(server.stdout.readline())
            assert status == 0, (status, out.read_text())
            return out.read_text()
        yield run
        server.stdin.close()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Copies, to be linked."""
    folder = tmp_path_factory.mktemp("lib")
    for library in (BUILD / "lib").glob("libfp8_*.so.0"):
        shutil.copy(library, folder)
    return folder


@pytest.fixture
def site(tmp_path, libraries):
    """An installation of its own: the package, its entry point, and the libraries."""
    place = tmp_path / "site"
    shutil.copytree(ROOT / "tools" / "python" / "fp8", place / "fp8", ignore=shutil.ignore_patterns("__pycache__"))
    info = place / "fp8_toolkit-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fp8-toolkit\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nhpu = fp8._autoload:autoload\n")
    shutil.copytree(libraries, place / "fp8" / "lib", copy_function=os.link)
    return place


def absent(printed, *words):
    seen = json.loads(printed)
    assert not seen["available"] and seen["count"] == 0 and not seen["here"] and seen["grad"] == [2, 2]
    assert seen["why"] and "\n" not in seen["why"] and all(word in seen["why"] for word in words), seen["why"]
    assert seen["uses"] == [f"the hpu device is not available: {seen['why']}"] * 2


def test_import_torch_knows_the_device(site):
    assert fresh("""
import sys, torch
assert "fp8.quant" not in sys.modules
x = torch.ones(2, device="hpu", requires_grad=True)
(x * x).sum().backward()
import fp8
assert torch.hpu is fp8.hpu and torch.hpu.is_available() and torch.hpu.why_unavailable() == ""
print(x.grad.tolist(), torch.accelerator.current_accelerator())
""", site) == "[2.0, 2.0] hpu\n"


def test_turned_off_and_imported_first(site):
    """fp8 before torch, in alphabetical order: FP8_AUTOLOAD=0 speaks of what nobody asked for."""
    assert fresh("import fp8, torch\nprint(torch.hpu is fp8.hpu)", site, FP8_AUTOLOAD="0") == "True\n"


@pytest.mark.parametrize("switch", ["FP8_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD"])
def test_turned_off(site, switch):
    """torch stays as it is, and fp8 brings the device when it is imported, after backwards too."""
    assert fresh("""
import torch
assert not hasattr(torch, "hpu") and "libfp8_" not in open("/proc/self/maps").read() and not torch.accelerator.is_available()
def grad(device):
    x = torch.ones(2, device=device, requires_grad=True)
    (x * x).sum().backward()
    return x.grad.tolist()
grad("cpu")
import fp8
print(grad("hpu"), grad("cpu"), torch.hpu is fp8.hpu)
""", site, **{switch: "0"}) == "[2.0, 2.0] [2.0, 2.0] True\n"


def test_fp8_without_torch(site):
    """`import fp8` is no `import torch`; the first name that needs it is."""
    assert fresh("""
import sys, fp8
assert "torch" not in sys.modules
fp8.quant
import torch
print(torch.ones(2, device="hpu").sum().item())
""", site, FP8_AUTOLOAD="0") == "2.0\n"


@pytest.mark.parametrize("disguise, words", [
    ("torch.__version__ = '2.12.1+cu130'", ["found torch 2.12.1+cu130", "expected 2.13", "pip install 'torch>=2.13,<2.14'"]),
    ("torch.version.cuda, torch.cuda.device_count = '13.0', lambda: 1", ["found a torch that computes on cuda", "hide the GPU (CUDA_VISIBLE_DEVICES=)",
                                                                         "--index-url https://download.pytorch.org/whl/cpu --force-reinstall"]),
    ("torch.version.hip = '7.0'", ["computes on rocm"]), ("torch.version.xpu = '2025'", ["computes on xpu"])])
def test_another_torch(forked, site, tmp_path, disguise, words):
    (tmp_path / "disguise.py").write_text("import torch\n" + disguise)
    absent(forked(SEEN, tmp_path, site, before=["disguise"]), *words)


def test_a_cuda_build_with_a_gpu(site, tmp_path):
    """The whole way: before `import torch` comes to this package, torch has a GPU."""
    (tmp_path / "sitecustomize.py").write_text(DISGUISE.format("torch.version.cuda, torch.cuda.device_count = '13.0', lambda: 1"))
    absent(fresh(SEEN, tmp_path, site), "computes on cuda")


def test_a_cuda_build_without_a_gpu(forked, site, tmp_path):
    """As its words say; what ATen has of CUDA is in tests/runtime/device/registration_test.cpp, and below."""
    (tmp_path / "disguise.py").write_text("import torch\ntorch.version.cuda = '13.0'")
    assert forked("import torch\nprint(torch.hpu.why_unavailable())", tmp_path, site, before=["disguise"]) == "\n"


ON_CUDA = """
import torch
assert torch.version.cuda and not torch.cuda.is_available() and not torch.hpu.why_unavailable(), torch.__version__
def trained(device):
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).to(device), torch.randn(16, 64).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        model(x).float().pow(2).sum().backward()
    return model.requires_grad_(False), x
(model, x), (other, _) = trained("hpu"), trained("cpu")
for a, b in zip(model.parameters(), other.parameters()):
    assert torch.equal(a.grad.cpu(), b.grad)
    a.grad = None
import fp8
before = model(x)
fp8.quant.prepare(model, {"scale_method": "maxabs_pow2", "dump_stats_path": STATS})
model(x)
model = fp8.quant.convert(model)
error = ((model(x) - before).norm() / before.norm()).item()
assert 0 < error < 0.1 and len(fp8.quant.report(model).converted) == 2
try:
    torch.ones(1, device="cuda")
except RuntimeError as error:
    print(str(error).splitlines()[0], torch.accelerator.current_accelerator(), torch.backends.cudnn.version() > 0)
"""


@pytest.mark.skipif(not os.environ.get("FP8_TEST_CUDA_PYTHON"), reason="FP8_TEST_CUDA_PYTHON names no Python whose torch is built for CUDA")
def test_torch_of_pypi(site, tmp_path):
    """Where it sees no GPU; where it sees one, hpu is not available."""
    python = os.environ["FP8_TEST_CUDA_PYTHON"]
    code = ON_CUDA.replace("STATS", repr(str(tmp_path / "inc")))
    said = "[cuda] expected a GPU when fp8 was loaded, found none: the accelerator of this process is hpu hpu True\n"
    assert fresh(code, site, python=python, CUDA_VISIBLE_DEVICES="") == said
    late = "import torch\nx = torch.ones(2, requires_grad=True)\n(x * x).sum().backward()\nimport fp8\n"
    assert fresh(late + code, site, python=python, CUDA_VISIBLE_DEVICES="", FP8_AUTOLOAD="0") == said
    if fresh("import torch\nprint(torch.cuda.device_count())", python=python) != "0\n":
        absent(fresh(SEEN, site, python=python), "computes on cuda")


def cut(path, length):
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:length])


@pytest.mark.parametrize("damage, words", [
    (lambda lib: (lib / LIBRARY).unlink(), [f"found no {LIBRARY}", "install fp8-toolkit again"]),
    (lambda lib: (lib / "libfp8_io.so.0").unlink(), ["libfp8_io.so.0", "install fp8-toolkit again"]),
    (lambda lib: cut(lib / "libfp8_runtime.so.0", 0), ["found a damaged", "libfp8_runtime.so.0 (0 bytes)"]),
    (lambda lib: cut(lib / "libfp8_runtime.so.0", 1_000_000), ["found a damaged", "(1000000 bytes)", "install fp8-toolkit again"]),
    (lambda lib: cut(lib / LIBRARY, -1), ["found a damaged", LIBRARY])])
def test_a_damaged_installation(forked, site, damage, words):
    damage(site / "fp8" / "lib")
    absent(forked(SEEN, site), *words)


def test_a_second_copy(forked, site, tmp_path, libraries):
    """The library of another folder was loaded before: it has the device, and two have none."""
    (tmp_path / "disguise.py").write_text(f"import torch\ntorch.ops.load_library('{libraries / LIBRARY}')")
    seen = json.loads(forked(SEEN.replace("torch.accelerator.is_available()", "False"), tmp_path, site, before=["disguise"]))
    assert not seen["available"] and f"found {libraries}" in seen["why"] and seen["why"].endswith("load one of the two")
    assert seen["uses"] == [f"the hpu device is not available: {seen['why']}"] * 2


def test_the_entry_point_is_the_packages():
    """What ctest puts beside the package, and pip writes of pyproject.toml."""
    found = [point.value for point in importlib.metadata.entry_points(group="torch.backends") if point.name == "hpu"]
    assert found == ["fp8._autoload:autoload"]
    assert 'hpu = "fp8._autoload:autoload"' in (ROOT / "tools" / "python" / "pyproject.toml").read_text()
