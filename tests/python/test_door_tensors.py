# SPDX-License-Identifier: Apache-2.0
"""Doors through which a weight goes, converted or attached: values or products come out, or an error names the module. The
letters are those of doors.py."""

import copy
import pickle

import pytest
import safetensors.torch as st
import torch
import torch.nn.functional as F
from conftest import batch
from doors import OPS, disk, group, made, near, refused, values_of
from torch import nn

# A weight goes in (w; v: its values), and a tensor comes out beside the one that is expected.
TENSORS = {}


def tensors(letters, **functions):
    TENSORS.update({name: (function, letters) for name, function in functions.items()})


ROWS = torch.tensor([1, 5])
tensors("rr", dequantized=lambda w, v: (OPS.values(w) if OPS.describe(w) else w, v), rows=lambda w, v: (w[:2], v[:2]), row=lambda w, v: (next(iter(w)), v[0]),
        columns=lambda w, v: (w[:, :8], v[:, :8]), transposed=lambda w, v: (w.t(), v.t()), split=lambda w, v: (w.split(64)[1], v[64:]),
        chunk=lambda w, v: (w.chunk(2)[1], v[64:]), unbound=lambda w, v: (w.unbind()[3], v[3]), reshaped=lambda w, v: (w.reshape(-1), v.reshape(-1)),
        deep=lambda w, v: (copy.deepcopy(w), v), on_cpu=lambda w, v: (w.cpu(), v), cloned=lambda w, v: (w.detach().clone(), v),
        embedded=lambda w, v: (F.embedding(ROWS.to("hpu"), w), v[ROWS]), to_own=lambda w, v: (w.to(v), v), to_copy=lambda w, v: (w.to(torch.float32, copy=True), v),
        to_cpu=lambda w, v: (w.to("cpu", torch.float32), v), new_full=lambda w, v: (w.new_full((2,), 0.3), torch.full((2,), 0.3)),
        new_tensor=lambda w, v: (w.new_tensor([0.3]), torch.tensor([0.3])), zeros=lambda w, v: (torch.zeros_like(w).float(), 0 * v),
        equal=lambda w, v: (torch.tensor(float(torch.equal(w, w))), torch.ones(())), itemsize=lambda w, v: (torch.tensor(w.dtype.itemsize), torch.tensor(4)),
        data_assigned=lambda w, v: (assigned(w, v + 1), v + 1), vector_to=lambda w, v: (vector_to(w, 2 * v), 2 * v))
tensors("rn", copied=lambda w, v: (copy.copy(w), v), pickled=lambda w, v: (pickle.loads(pickle.dumps(w)), v), saved=lambda w, v: (disk(w, weights_only=False), v),
        saved_weights_only=lambda w, v: (disk(w, weights_only=True), v))
tensors("nr", to_float=lambda w, v: (w.detach().float(), v), cpu_float=lambda w, v: (w.detach().cpu().float(), v), bf16=lambda w, v: (w.bfloat16(), v.bfloat16()),
        cat=lambda w, v: (torch.cat([w, w]), torch.cat([v, v])), cat_mixed=lambda w, v: (torch.cat([w, v]), torch.cat([v, v])),
        stack=lambda w, v: (torch.stack([w, w]), torch.stack([v, v])), norm=lambda w, v: (w.norm(), v.norm()), lerp=lambda w, v: (torch.lerp(w, v, 0.5), v),
        lerp_into=lambda w, v: (torch.zeros_like(v).lerp_(w, 1.0), v), total_norm=lambda w, v: (nn.utils.get_total_norm([w]), v.norm()),
        to_vector=lambda w, v: (nn.utils.parameters_to_vector([w]), v.flatten()), plus=lambda w, v: (w + 1, v + 1), times=lambda w, v: (2 * w, 2 * v),
        foreach=lambda w, v: (torch._foreach_mul([w], 2.0)[0], 2 * v), numpy=lambda w, v: (torch.from_numpy(w.detach().cpu().numpy()), v),
        listed=lambda w, v: (torch.tensor(w.tolist()), v), item=lambda w, v: (torch.tensor(w[3, 4].item()), v[3, 4]), greatest=lambda w, v: (w.max(), v.max()),
        compared=lambda w, v: ((w > 0.05).float(), (v > 0.05).float()), mean=lambda w, v: (w.abs().mean(), v.abs().mean()),
        where=lambda w, v: (torch.where(v > 0, w, 0.0), v.clamp_min(0)), indexed=lambda w, v: (w[ROWS.to("hpu")], v[ROWS]),
        index_select=lambda w, v: (torch.index_select(w, 0, ROWS.to("hpu")), v[ROWS]), contiguous=lambda w, v: (w.t().contiguous(), v.t()),
        copied_out=lambda w, v: (torch.empty_like(v).copy_(w.detach()), v), copied_to_cpu=lambda w, v: (torch.empty(v.shape).copy_(w.detach()), v),
        copied_in=lambda w, v: (written(w.copy_, v + 1), v + 1), filled=lambda w, v: (written(w.fill_, 1.0), torch.ones_like(v)),
        added=lambda w, v: (written(w.add_, 1.0), v + 1), row_written=lambda w, v: (written(w.__setitem__, 0, 0.0), torch.cat([0 * v[:1], v[1:]])),
        initialized=lambda w, v: (nn.init.constant_(w, 0.5), torch.full_like(v, 0.5)), type_as=lambda w, v: (w.type_as(v), v),
        saved_codes=lambda w, v: (disk(w.detach(), map_location="cpu").float(), v), saved_part=lambda w, v: (disk(w.detach()[:2]).float(), v[:2]),
        pickled_part=lambda w, v: (pickle.loads(pickle.dumps(w[:2].detach() if type(w) is nn.Parameter else w[:2])), v[:2]),
        broadcast=lambda w, v: (group() and torch.distributed.broadcast(w.detach(), 0) or w, v), into_plain=lambda w, v: (into_plain(w), v),
        distributed=lambda w, v: (group() and torch.distributed.tensor.distribute_tensor(
            w.detach(), torch.distributed.device_mesh.init_device_mesh("hpu", (1,))).to_local(), v))
tensors("rr", full_like=lambda w, v: (torch.full_like(w, 0.3).float(), torch.full_like(v, 0.3)))
tensors("nr", viewed=lambda w, v: (w.detach().view(torch.float32), v), viewed_on_cpu=lambda w, v: (w.detach().cpu().view(torch.float32), v),
        set_wider=lambda w, v: (torch.empty(0, dtype=torch.float32, device="hpu").set_(w.untyped_storage()).view(-1)[:v.numel()], v.view(-1)))
tensors("tr", safetensors_live=lambda w, v: (st.load(st.save({"w": w}))["w"], v))


def assigned(weight, values):
    weight.data = values
    return weight


def vector_to(weight, values):
    nn.utils.vector_to_parameters(values.flatten(), [weight])
    return weight


def written(method, *arguments):
    with torch.no_grad():
        method(*arguments)
    return method.__self__


def into_plain(weight):
    plain = nn.Linear(64, 128, bias=False)
    plain.load_state_dict({"weight": weight.detach()})
    return plain.weight


# A model goes in, and products come out beside those that are expected, which follow from the module's own.
PRODUCTS = {
    "rows": lambda m, x: (F.linear(x, m.up_proj.weight[:64]), m.up_proj(x)[:, :64] - m.up_proj.bias[:64]),
    "columns": lambda m, x: (F.linear(x[:, :32], m.up_proj.weight[:, :32]), m.up_proj(F.pad(x[:, :32], (0, 32))) - m.up_proj.bias),
    "chunk": lambda m, x: (F.linear(x, m.up_proj.weight.chunk(2)[1]), m.up_proj(x)[:, 64:] - m.up_proj.bias[64:]),
    "matmul": lambda m, x: (x @ m.up_proj.weight.t(), m.up_proj(x) - m.up_proj.bias),
    "einsum": lambda m, x: (torch.einsum("bi,oi->bo", x, m.up_proj.weight), m.up_proj(x) - m.up_proj.bias),
    "detached": lambda m, x: (F.linear(x, m.up_proj.weight.detach(), m.up_proj.bias), m.up_proj(x)),
    "vmap": lambda m, x: (torch.func.vmap(lambda row: m(row[None])[0])(x), m(x)),
    "vmap_of_batches": lambda m, x: (torch.func.vmap(m)(x.view(4, 4, 64)), torch.stack([m(part) for part in x.view(4, 4, 64)])),
    "gradient": lambda m, x: (torch.func.grad(lambda t: m.up_proj(t).sum())(x), m.up_proj.weight.dequantize().sum(0).expand(16, 64)),
}


@pytest.mark.parametrize("kind", ["static", "dynamic", "attached"])
@pytest.mark.parametrize("name", TENSORS)
def test_tensors(name, kind, tmp_path):
    go, letters = TENSORS[name]
    model, letter = made(kind, tmp_path), letters[kind == "attached"]
    weight, values = model.up_proj.weight, values_of(model)[0]
    if letter in "ntx":
        return refused(letter, lambda: go(weight, values))
    near(*go(weight, values))


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, kind, tmp_path):
    near(*PRODUCTS[name](made(kind, tmp_path), batch()))


@pytest.fixture(scope="module", autouse=True)
def no_group_is_left():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
