# SPDX-License-Identifier: Apache-2.0
"""What a Python package does to one checkpoint, layer or model; run by peers.py, once a measurement.

    convert TOOL MODEL OUT      writes OUT and prints the seconds without imports
    check MODEL OUT             fails unless a weight of OUT is that of MODEL, rounded to E4M3
    chunks MODEL LENGTH SAMPLES JUDGED CALIBRATION JUDGE TEXT...    writes two files of input_ids
    from_gguf FILE OUT          writes a checkpoint of bf16
    quality METHOD MODEL CALIBRATION OUT    writes OUT: "nearest", "gptq", "gptq mse"
    linear THREADS SECONDS      microseconds of products of M rows with a weight of 4096 x 4096
    model KIND MODEL THREADS    tokens a second: one at a time after 128 (decode), 128 at once (prefill)

One JSON object on stdout; the packages' own words go to stderr.
"""

import contextlib
import copy
import itertools
import json
import pathlib
import statistics
import sys
import time

CONTEXT = 128
SIDE, WEIGHTS, ROWS = 4096, 4, (1, 16, 512)
IGNORED = ["lm_head"]

# --- conversion


def load(model):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype="auto")


def model_free_ptq(model, out):
    from llmcompressor import model_free_ptq as convert

    return lambda: convert(model, out, scheme="FP8_DYNAMIC", ignore=[*IGNORED, "model.embed_tokens"], max_workers=2, device="cpu")


def oneshot(model, out):
    from llmcompressor import oneshot as convert
    from llmcompressor.modifiers.quantization import QuantizationModifier

    def work():
        loaded = load(model)
        convert(model=loaded, recipe=QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=IGNORED))
        loaded.save_pretrained(out)

    return work


def compressed_tensors(model, out):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    def work():
        loaded = load(model)
        apply_quantization_config(loaded, QuantizationConfig(config_groups={"FP8_DYNAMIC": ["Linear"]}, ignore=IGNORED))
        for module in loaded.modules():
            if scheme := getattr(module, "quantization_scheme", None):
                weight = module.weight.detach()
                scale, _ = calculate_qparams(weight.amin(1, keepdim=True), weight.amax(1, keepdim=True), scheme.weights)
                module.weight_scale.data.copy_(scale)
        compressor = ModelCompressor.from_pretrained_model(loaded)
        compressor.compress_model(loaded)
        loaded.save_pretrained(out)
        compressor.update_config(out)

    return work


def torchao(model, out):
    from torchao.quantization import Float8WeightOnlyConfig
    from transformers import AutoModelForCausalLM, TorchAoConfig

    def work():
        config = TorchAoConfig(Float8WeightOnlyConfig(), modules_to_not_convert=IGNORED)
        AutoModelForCausalLM.from_pretrained(model, dtype="auto", quantization_config=config).save_pretrained(out)

    return work


TOOLS = {"model_free_ptq": model_free_ptq, "oneshot": oneshot, "compressed-tensors": compressed_tensors,
         "torchao weight-only": torchao}


def convert(tool, model, out):
    work = TOOLS[tool](model, out)
    began = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - began}


def check(model, out):
    import torch
    from safetensors import safe_open

    def found(folder):
        tensors = {}
        for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                tensors |= {name: file.get_tensor(name) for name in file.keys() if "layers.0.self_attn.q_proj" in name}
        return tensors

    expected = found(model)["model.layers.0.self_attn.q_proj.weight"].float()
    tensors = found(out)
    codes = next((t for t in tensors.values() if t.dtype == torch.float8_e4m3fn), None)
    scale = next((t for name, t in tensors.items() if "scale" in name and "input" not in name), None)
    if codes is None or scale is None:
        sys.exit(f"no E4M3 codes with a scale, found {sorted(tensors)}")
    error = (codes.float() * scale.float().reshape(-1, 1) - expected).norm() / expected.norm()
    if not error < 0.04:  # 2^-4 at most, 0.026 on average
        sys.exit(f"differs from the source by {error:.3f} of it")
    return {"error": error.item()}


# --- quality


def chunks(model, length, samples, judged, calibration, judge, *texts):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    tokenizer, length, samples, judged = AutoTokenizer.from_pretrained(model), int(length), int(samples), int(judged)
    ids = [torch.tensor(tokenizer(pathlib.Path(text).read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]) for text in texts]
    first, last = ids[0], ids[-1] if len(ids) > 1 else ids[0][samples * length:]
    for path, tokens, count in ((calibration, first, samples), (judge, last, judged)):
        count = min(count, len(tokens) // length)
        save_file({"input_ids": tokens[:count * length].reshape(count, length).contiguous()}, path)
    return {}


def from_gguf(path, out):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = pathlib.Path(path)
    loaded = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype="bfloat16")
    loaded.hf_quantizer = None  # its values are decoded, and save_pretrained() would refuse it
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    loaded.save_pretrained(out)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(out)
    return {}


def quality(method, model, calibration, out):
    from datasets import Dataset
    from llmcompressor import oneshot as convert
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    ids = load_file(calibration)["input_ids"].tolist()
    data = Dataset.from_dict({"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]})
    scheme = {"targets": "Linear", "scheme": "FP8_DYNAMIC"}
    if "mse" in method:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "observer": "memoryless_mse"}
        inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
        scheme = {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}}
    modifier = GPTQModifier if "gptq" in method else QuantizationModifier
    loaded = load(model)
    began = time.perf_counter()
    more = {"dataset": data, "max_seq_length": len(ids[0]), "num_calibration_samples": len(ids)} if "gptq" in method else {}
    convert(model=loaded, recipe=modifier(ignore=IGNORED, **scheme), **more)
    seconds = time.perf_counter() - began
    loaded.save_pretrained(out, save_compressed=True)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)
    return {"seconds": seconds}


# --- layers and models


def medians(calls, seconds):
    """Microseconds of each, in turns."""
    samples = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(samples.values()))) < 5:
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            samples[name].append(1e6 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in samples.items()}


def why(problem):
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:160]


def layers_of(plain, result):
    """{name: (copies of the layers, what calls one)} of those that work; why the others do not goes into result."""
    import torch
    from torchao import quantization

    kinds = {"torch bf16": None, "torchao weight-only": quantization.Float8WeightOnlyConfig(),
             "torchao dynamic": quantization.Float8DynamicActivationFloat8WeightConfig(granularity=quantization.PerRow())}
    x = torch.randn(4, SIDE, dtype=torch.bfloat16)
    expected = plain[0](x).float()
    layers = {}
    for kind, config in kinds.items():
        ways = {kind: lambda layer, x: layer(x)}
        if config is not None:
            ways[kind + " compiled"] = torch.compile(ways[kind], dynamic=False)
        for name, call in ways.items():
            try:
                made = [torch.nn.Sequential(copy.deepcopy(layer)) for layer in plain]
                for layer in made if config is not None else ():
                    quantization.quantize_(layer, config)
                error = ((call(made[0], x).float() - expected).norm() / expected.norm()).item()
                if not error < 0.08:  # two operands in E4M3 at most
                    raise ValueError(f"the result differs by {error:.3f} of it")
                layers[name] = (made, call)
            except Exception as problem:  # of any kind: theirs
                result[name] = why(problem)
    return layers


def linear(threads, seconds):
    import torch

    torch.set_num_threads(int(threads))
    result = {}
    with torch.inference_mode():
        # In turns: all but the first call would find one weight in the last cache.
        plain = [torch.nn.Linear(SIDE, SIDE, bias=False, dtype=torch.bfloat16) for _ in range(WEIGHTS)]
        layers = layers_of(plain, result)
        for rows in ROWS:
            x = torch.randn(rows, SIDE, dtype=torch.bfloat16)
            calls = {name: lambda made=made, call=call, turn=itertools.cycle(range(WEIGHTS)): call(made[next(turn)], x)
                     for name, (made, call) in layers.items()}
            for call in calls.values():
                for _ in range(WEIGHTS):
                    call()
            for name, microseconds in medians(calls, float(seconds)).items():
                result.setdefault(name, {})[f"linear M={rows}"] = microseconds
    return result


def model(kind, folder, threads):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(threads))
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    if kind == "torchao weight-only":
        from torchao import quantization

        wanted = lambda module, name: isinstance(module, torch.nn.Linear) and name not in IGNORED
        quantization.quantize_(loaded, quantization.Float8WeightOnlyConfig(), filter_fn=wanted)
    with torch.inference_mode():
        ids = (torch.arange(CONTEXT) * 7919 % loaded.config.vocab_size).unsqueeze(0)
        cache = loaded(ids, use_cache=True).past_key_values

        def rate(tokens, call, seconds=4.0):
            call()
            calls, began = 0, time.perf_counter()
            while calls == 0 or time.perf_counter() - began < seconds:
                call()
                calls += 1
            return tokens * calls / (time.perf_counter() - began)

        def step():
            loaded(ids[:, :1], past_key_values=cache, use_cache=True)
            cache.crop(-1)

        return {"decode": rate(1, step), "prefill": rate(CONTEXT, lambda: loaded(ids, use_cache=False, logits_to_keep=1))}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        parts = (convert, check, chunks, from_gguf, quality, linear, model)
        found = {part.__name__: part for part in parts}[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(found))
