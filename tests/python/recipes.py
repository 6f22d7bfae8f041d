# SPDX-License-Identifier: Apache-2.0
# The code of tools/pages/python.md, in its order. Run in a folder with the demo model and its texts: recipes.py FOLDER.
import os
import sys

os.chdir(sys.argv[1])

import pathlib

import torch

model = torch.nn.Linear(64, 32).to("hpu")
y = model(torch.randn(2, 64, device="hpu"))
print(y.device, torch.hpu.memory_allocated() > 0, torch.hpu.why_unavailable() == "")

import transformers

import fp8

folder = "kjv-byte-1.7M"
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
ids = tokenizer(pathlib.Path("kjv_calib.txt").read_text(), return_tensors="pt").input_ids
chunks = ids[:, : 8 * 256].view(8, 1, 256).to("hpu")
reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("hpu")
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("hpu")

config = fp8.quant.FP8Config(scale_method="maxabs_pow2", blocklist={"names": ["lm_head"]}, dump_stats_path="stats/inc")
model = fp8.quant.prepare(model, config)
with torch.no_grad():
    for chunk in chunks:
        model(chunk)
model = fp8.quant.convert(model)
print(fp8.quant.report(model))

text = pathlib.Path("kjv_heldout_16k.txt").read_text()
held_out = tokenizer(text, return_tensors="pt").input_ids[0, :4096]
lost = fp8.evaluate(model, held_out, reference=reference, seq_len=256)
print(f"perplexity {lost.perplexity:.3f}, KL {lost.kl:.4f}, same token {lost.top1_agreement:.2f}")

fp8.quant.save(model, "demo-fp8")
model.save_pretrained("demo-hf")

served = fp8.quant.load("demo-fp8")
with torch.no_grad():
    print(torch.equal(served(chunks[0]).logits, model(chunks[0]).logits))

weight = model.model.layers[0].mlp.up_proj.weight
print(weight.dtype, weight.codes.dtype, weight.scale_inv.numel(), weight.scheme["activations"])
values = weight.dequantize()

whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("hpu")
fp8.attention.use(whole)
fp8.quant.prepare(whole, {"scale_method": "maxabs_pow2", "dump_stats_path": "stats/attention"})
with torch.no_grad():
    whole(chunks[0])
fp8.quant.convert(whole)
cache = fp8.Cache(whole)
answer = whole.generate(chunks[0][:, :32], max_new_tokens=16, past_key_values=cache, do_sample=False)
print(answer.shape[1], cache.layers[0].keys.dtype)


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(32, 64))
        self.product = fp8.nn.Matmul()

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.matrix)
        return self.product(y, y.transpose(-1, -2))


fp8.quant.register(Gate, weight="matrix")
gate = Gate().to("hpu")
fp8.quant.convert(gate, {"mode": "QUANTIZE", "scale_method": "unit_scale"})
print(len(fp8.quant.report(gate).converted))

torch.save(model.state_dict(), "demo.pt")
model.load_state_dict(torch.load("demo.pt"))
fast = torch.compile(model, backend="fp8")

trained = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to("hpu").train()
optimizer = fp8.optim.FusedAdamW(trained.parameters(), lr=1e-4)
report = fp8.te.convert_modules(trained)
hybrid = fp8.te.recipe.DelayedScaling(fp8_format=fp8.te.recipe.Format.HYBRID)
for chunk in chunks[:4]:
    with fp8.te.fp8_autocast(enabled=True, fp8_recipe=hybrid):
        loss = trained(chunk, labels=chunk).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(report.converted), "modules train in fp8")
torch.save([trained.state_dict(), optimizer.state_dict()], "resume.pt")

tuned = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
rows = [{"input_ids": chunk[0], "labels": chunk[0]} for chunk in chunks.cpu()]
args = fp8.optimum.GaudiTrainingArguments(
    "tuned", use_habana=True, fp8=True, max_steps=4, per_device_train_batch_size=1, throughput_warmup_steps=1,
    report_to=[], save_strategy="no")
config = fp8.optimum.GaudiConfig(use_fused_adam=True, use_fused_clip_norm=True)
trainer = fp8.optimum.GaudiTrainer(tuned, config, args, train_dataset=rows)
trainer.pop_callback(transformers.ProgressCallback)
metrics = trainer.train().metrics
print(tuned.device, len(trainer.fp8_report.converted), [name for name in metrics if "GB" in name])

state = torch.classes.fp8.State("up_proj")  # scales and amaxes; state.bytes() and state.set_bytes() save and load them
weight = torch.randn(32, 16, device="hpu", requires_grad=True)
with fp8.te.fp8_autocast(True, fp8_recipe="nvidia"):
    y = torch.ops.fp8.linear(torch.randn(4, 16, device="hpu"), weight, None, state)
y.sum().backward()
