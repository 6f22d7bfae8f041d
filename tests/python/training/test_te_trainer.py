# SPDX-License-Identifier: Apache-2.0
"""Modules of fp8.te train with the bits of C++'s: a network and a loop here, and te_parts.cpp trained by `fp8 train`."""

import json
import subprocess

import pytest
import torch
from conftest import BUILD
from test_te_modules import RECIPES
from torch.nn import functional as F  # noqa: N812

import fp8
from fp8 import te

STEPS, SEED, PARTS = 50, 5, BUILD / "lib" / "te_parts.so"


class Network(torch.nn.Module):
    """That of te_parts.cpp. Random numbers of stochastic rounding are drawn by the names of modules."""

    def __init__(self):
        super().__init__()
        self.layer = te.TransformerLayer(32, 64, 4, hidden_dropout=0, attention_dropout=0, attn_input_format="bshd")
        self.up = te.LayerNormLinear(32, 64, normalization="RMSNorm")
        self.down = te.Linear(64, 32, name="linear")
        self.head = torch.nn.Linear(32, 32, bias=False)
        random = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for _, p in sorted(self.named_parameters()):
                drawn = (0.1 * torch.randn(p.shape, generator=random)).to(p.device)
                p.copy_(drawn if p.dim() == 2 else drawn + p)

    def forward(self, x):
        return self.head(self.down(F.gelu(self.up(self.layer(x)))))


@pytest.fixture(autouse=True)
def one_thread():
    """Sums are taken in the order of the program's one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(recipe):
    """Losses and parameters."""
    model, losses = Network().to("hpu"), []
    assert [module.name for module in te.convert_modules(model, recipe=recipe).converted] == ["head"]
    optimizer = fp8.optim.FusedAdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    batches = torch.randn(2, 40, 8, 32, generator=torch.Generator().manual_seed(SEED)).to("hpu").split(4, 1)
    for step in range(STEPS):
        x, target = batches[step % 10]
        with torch.autocast("hpu", torch.bfloat16, cache_enabled=False), te.fp8_autocast(True, fp8_recipe=recipe):
            loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach().cpu() for name, p in model.named_parameters()}


@pytest.mark.skipif(not PARTS.exists(), reason="the build has no te_parts.so (FP8_BUILD_TESTS, FP8_BUILD_TOOLS)")
@pytest.mark.parametrize("name", RECIPES)
def test_it_is_the_trainer_of_the_program(name, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    run = {"model": {"class_path": "TeNetwork"}, "data": {"class_path": "TeBatches"},
           "trainer": {"max_steps": STEPS, "log_every_n_steps": 1, "default_root_dir": str(tmp_path / "run")}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    done = subprocess.run([BUILD / "bin" / "fp8", "train", "--load", PARTS, "--config", tmp_path / "run.json", "--precision", "fp8", "--recipe", name,
                           "--threads", "1", "-q"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    [state] = (tmp_path / "run" / "checkpoints").glob("*/trainer_state.safetensors")
    theirs = {key.removeprefix("parameter."): value for key, value in safetensors.load_file(state).items() if key.startswith("parameter.")}
    losses, ours = trained(RECIPES[name])
    assert [line["loss"] for line in lines] == losses and losses[-1] < losses[0]
    assert theirs.keys() == ours.keys() and len(ours) > 20
    assert [key for key, value in ours.items() if not torch.equal(value, theirs[key])] == []
