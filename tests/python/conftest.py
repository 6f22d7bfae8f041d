# SPDX-License-Identifier: Apache-2.0
"""What the tests of the package share: the demo model, and a model of two layers."""

import os
import pathlib

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TOKENIZERS_PARALLELISM="false")

import torch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "tools" / "demo_data"
BUILD = pathlib.Path(os.environ.get("FP8_BUILD", ROOT / "build"))


def net(device="hpu"):
    """[64 -> 128 -> 32], the same weights each time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to(device)


def batch(rows=16):
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(1)).to("hpu")


@pytest.fixture(autouse=True, scope="module")
def elsewhere(request, tmp_path_factory):
    """What engines write where they are run (lightning_logs, say) goes with their tests."""
    here = os.getcwd()
    if request.path.parent.name == "engines":
        os.chdir(tmp_path_factory.mktemp("engines"))
    yield
    os.chdir(here)


@pytest.fixture
def converted():
    """net() in fp8 with static scales, and what it gives for batch()."""
    import fp8
    model = net()
    with torch.no_grad():
        fp8.quant.convert(model, {"mode": "QUANTIZE", "scale_method": "unit_scale"})
        return model, model(batch())
