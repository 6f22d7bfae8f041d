# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/NAME.json: transformers' logits for tiny checkpoints whose values a formula makes.

    make_fixtures.py [NAME ...]

A fixture holds the config.json of a checkpoint, the shapes and value ranges of its tensors as they lie on disk, and
runs: token ids and the logits that transformers computes from them. Weights are not kept: the reader makes them
from the tensors' names as well. make_fixtures_table.py has the rows.

Element i (row-major) of a tensor comes from h = splitmix64(FNV-1a(name) + i):
    numbers    float32(mean + amplitude * ((h >> 40) * 2^-23 - 1))
    bytes      h >> 56
    exponents  118 + (h >> 56) % 6, a byte
"""

import copy
import json
import math
import os
import pathlib
import re
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads that start for each load of tiny tensors take longer than they gain

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import make_fixtures_table as table  # noqa: E402

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
DIGITS = 7  # of a logit
SHORT, LONG, PADDED = 10, 40, 7  # tokens of a run's rows
FIRST_TOKEN = 3  # ids below are special
VISIBLE = 0.005  # of the logits' deviation: what a part of a model moves them at least, or a test of it cannot fail
DOUBLINGS = 6

# Keys of config.json that change no logit in a run without training.
IRRELEVANT = re.compile(
    r"transformers_version|_name_or_path|use_cache|dtype|problem_type|return_dict|output_.*|initializer_.*|.*dropout.*"
    r"|.*_pdrop|.*layerdrop|pretraining_tp|chunk_size_feed_forward|router_(aux_loss_coef|jitter_noise)|summary_.*"
    r"|input_jitter_noise|init_.*|_remove_final_layer_norm|learned_pos_emb|embedding_fraction|(cls|sep|mask)_token_id"
    r"|task_specific_params|is_decoder|add_cross_attention|reorder_and_upcast_attn|slow_but_exact|sparse_pred.*"
    r"|deterministic_flash_attn|layer_norm_elementwise_affine|forced_eos_token_id")


def seed(name):
    """FNV-1a, 64 bits."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def hashes(name, count):
    """splitmix64 of seed(name) + 0, 1, 2, ..."""
    z = numpy.arange(count, dtype=numpy.uint64) + numpy.uint64(seed(name)) + numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def values(name, entry):
    """The tensor that an entry of "tensors" stands for."""
    h = hashes(name, math.prod(entry["shape"]))
    if entry.get("kind") == "bytes":
        made = (h >> numpy.uint64(56)).astype(numpy.uint8)
    elif entry.get("kind") == "exponents":
        made = (118 + (h >> numpy.uint64(56)) % numpy.uint64(6)).astype(numpy.uint8)
    else:
        u = (h >> numpy.uint64(40)).astype(numpy.float64)
        made = (entry["mean"] + entry["amplitude"] * (u * 2.0**-23 - 1.0)).astype(numpy.float32)
    return torch.from_numpy(made.reshape(entry["shape"]))


def power_of_two(value):
    return 2.0 ** round(math.log2(value))


def entry_of(name, tensor, row):
    """Shape and value range of a tensor: by the row, then by what its name says that it is."""
    shape = list(tensor.shape)
    for pattern, mean, amplitude in row.get("values", []) + table.VALUES:
        if re.search(pattern, name):
            return {"shape": shape, "mean": mean, "amplitude": amplitude}
    if len(shape) < 2:
        raise ValueError(f"{name} {shape}: neither a norm nor a bias")
    in_first = re.search(row.get("in_first", r"^$"), name)
    fan_in = shape[-2] if in_first else shape[-1]
    return {"shape": shape, "mean": 0, "amplitude": power_of_two(math.sqrt(3 / fan_in))}


# Configs.

def known_keys(config_class):
    known = set(config_class().to_dict()) | set(config_class.attribute_map)
    return known | {"rope_theta"} if "rope_parameters" in known else known


def config_of(row):
    """The tiny config, and the keys that a row or the common sizes gave."""
    config_class = transformers.CONFIG_MAPPING[row["type"]]
    known = known_keys(config_class)
    own = row.get("config", {})
    left_out = set(row.get("without", ())) | set(own)
    common = {key: value for key, value in table.COMMON.items() if key in known
              and key not in left_out and config_class.attribute_map.get(key) not in left_out}
    given = common | own
    return config_class(**given), {config_class.attribute_map.get(key, key) for key in given}


def earlier_spelling(saved):
    """rope_parameters as configs had them before transformers 5: rope_theta and rope_scaling."""
    rope = saved.pop("rope_parameters", None)
    if not rope or rope.get("rope_type") == "axial":  # a tower's
        return saved
    if "full_attention" in rope:
        local = rope["sliding_attention"]["rope_theta"]
        saved["rope_local_base_freq"] = local
        rope = rope["full_attention"]
    rope = dict(rope)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            saved[key] = rope.pop(key)
    saved["rope_scaling"] = rope if rope != {"rope_type": "default"} else None
    return saved


def names_in(config):
    """The keys of a config and of its parts."""
    return set(config).union(*[names_in(part) for part in config.values() if isinstance(part, dict)])


def cleaned(saved, row, given):
    """A config, or a part, without what changes no logit."""
    kept = {}
    for key, value in saved.items():
        if key in ("id2label", "label2id") and "num_labels" not in row.get("config", {}) or key in row.get("drop", ()):
            continue
        if key in given or not (value is None or value is False and key == "is_encoder_decoder"
                                or IRRELEVANT.fullmatch(key)):
            part = isinstance(value, dict) and not key.startswith("rope_")
            kept[key] = cleaned(value, row, given) if part else value
    return kept if row.get("modern") else earlier_spelling(kept)


def written_config(saved, row, given):
    """config.json as a checkpoint on the hub has it."""
    kept = cleaned(saved, row, given | names_in(row.get("config", {})))
    if row.get("flat"):
        kept = kept.pop("text_config") | kept
    kept |= row.get("hub", {})
    return {key: kept[key] for key in sorted(kept) if key not in row.get("drop", ())}


# Models.

def packed(stored):
    """gpt_oss' experts as the hub stores them: 4-bit numbers in blocks of 32 along the input, an exponent each."""
    tensors = {}
    for name, tensor in stored.items():
        if re.search(r"experts\.(gate_up|down)_proj$", name):
            experts, inputs, outputs = tensor.shape
            tensors[name + "_blocks"] = {"shape": [experts, outputs, inputs // 32, 16], "kind": "bytes"}
            tensors[name + "_scales"] = {"shape": [experts, outputs, inputs // 32], "kind": "exponents"}
    return tensors


def write_checkpoint(folder, config, tensors):
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: values(name, entry) for name, entry in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def load(model_class, folder, strict=True):
    """The model of a folder. Where `strict` is false, tensors that the model does not know are no error."""
    config = json.loads((folder / "config.json").read_text())
    quantized = "quantization_config" in config
    options = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if quantized else {}
    # Its eager attention adds Falcon's biases to scores that have them.
    attention = "sdpa" if config.get("alibi") is True else "eager"
    loaded, info = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention,
                                               output_loading_info=True, **options)
    trouble = {key: found for key, found in info.items() if found and (strict or key != "unexpected_keys")}
    if trouble:
        raise ValueError(f"loading: {trouble}")
    return loaded.eval()


def answers(model, runs):
    """The logits of each run at its positions."""
    logits = []
    for run in runs:
        inputs = {"input_ids": torch.tensor(run["ids"])}
        if "attention_mask" in run:
            inputs["attention_mask"] = torch.tensor(run["attention_mask"])
        if "decoder_ids" in run:
            inputs["decoder_input_ids"] = torch.tensor(run["decoder_ids"])
        with torch.no_grad():
            made = model(**inputs).logits.float()
        logits.append(made if run["positions"] is None else made[:, run["positions"]])
    return logits


def compute(model_class, config, tensors, runs, strict=True):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_checkpoint(folder, config, tensors)
        return answers(load(model_class, folder, strict), runs)


def token_ids(name, rows, length, vocabulary):
    drawn = FIRST_TOKEN + hashes(name, rows * length) % numpy.uint64(vocabulary - FIRST_TOKEN)
    return drawn.astype(int).reshape(rows, length).tolist()


def runs_of(name, row, vocabulary):
    short = {"ids": token_ids(name + " short", 2, SHORT, vocabulary)}
    long = {"ids": token_ids(name + " long", 1, LONG, vocabulary)}
    if row.get("kind") in ("encoder", "classifier", "both"):
        padding = SHORT - PADDED
        padded = token_ids(name + " padded", 1, PADDED, vocabulary)[0]
        short["ids"].append(padded + [row["config"]["pad_token_id"]] * padding)
        short["attention_mask"] = [[1] * SHORT] * 2 + [[1] * PADDED + [0] * padding]
    if row.get("kind") == "both":
        short["decoder_ids"] = token_ids(name + " short answer", 3, SHORT, vocabulary)
        long["decoder_ids"] = token_ids(name + " long answer", 1, LONG, vocabulary)
    if row.get("kind") == "classifier":
        return [run | {"positions": None} for run in (short, long)]
    last = PADDED - 1 if row.get("kind") == "encoder" else SHORT - 1
    # A variant's first token tells nothing new.
    return [short | {"positions": [last] if "-" in name and "kind" not in row else [0, last]},
            long | {"positions": [LONG - 1]}]


def entropy(logits):
    probabilities = torch.cat([part.reshape(-1, part.shape[-1]) for part in logits]).softmax(-1)
    return -(probabilities * probabilities.clamp_min(1e-30).log()).sum(-1).mean().item()


def double(tensors, row):
    """Doubles the logits: the head's amplitude, or the last norm's weight where the head is tied."""
    heads = [name for name in tensors if re.search(row.get("head", table.HEAD), name)]
    norms = [name for name in tensors if re.search(row.get("last_norm", table.LAST_NORM), name)]
    if heads:
        for name in heads:
            tensors[name]["amplitude"] *= 2
        return
    if len(norms) != 1:
        raise ValueError(f"no head and not one last norm: {norms}")
    entry = tensors[norms[0]]
    added = 1 if row.get("adds_one") else 0
    entry["mean"] = 2 * (entry["mean"] + added) - added
    entry["amplitude"] *= 2


def sharpened(model_class, config, tensors, runs, row):
    """The logits, once they say something: entropy at most half of a uniform choice's."""
    for _ in range(DOUBLINGS):
        logits = compute(model_class, config, tensors, runs)
        if not all(part.isfinite().all() for part in logits):
            raise ValueError("logits that are not finite")
        if "num_labels" in row.get("config", {}) or entropy(logits) <= 0.5 * math.log(logits[0].shape[-1]):
            return logits
        double(tensors, row)
    raise ValueError("logits stay flat")


def moved(logits, other):
    """How far the farthest logit went, in deviations."""
    return max((a - b).abs().max().item() / max(a.std().item(), 1e-6) for a, b in zip(logits, other))


def other_numbers(config, idle):
    """Configs that differ in one number with a fraction (a scale, an epsilon, a frequency) or use one expert."""
    for key, value in config.items():
        if isinstance(value, float) and key not in idle:
            yield {key: value * 1.5}
        elif key in ("num_experts_per_tok", "moe_topk", "moe_k") and key not in idle:
            yield {key: 1}
        elif isinstance(value, dict) and key != "vision_config":
            yield from ({key: value | other} for other in other_numbers(value, idle))


def check_controls(model_class, config, tensors, runs, logits, row):
    """What is peculiar to the row must matter: the config without it gives other logits in the long run."""
    numbers = [(control, 0) for control in other_numbers(config, row.get("idle", ()))]
    for control, first in [(control, -1) for control in row.get("controls", [])] + numbers:
        other = compute(model_class, config | control, tensors, runs, strict=False)
        distance = moved(logits[first:], other[first:])
        if distance < VISIBLE:
            raise ValueError(f"{control} changes nothing: {distance}")


def check_parts(model_class, config, tensors, runs, logits, row):
    """Every kind of tensor must matter: with its mean instead of its values the logits are others."""
    kinds = {re.sub(r"\d+", "#", name) for name in tensors}
    for kind in sorted(kinds):
        if re.search(row.get("inert", r"^$"), kind):
            continue
        flat = {name: entry | {"amplitude": 0.0} if re.sub(r"\d+", "#", name) == kind else entry
                for name, entry in tensors.items()}
        if flat == tensors or any("kind" in entry for name, entry in flat.items() if entry != tensors[name]):
            continue
        distance = moved(logits, compute(model_class, config, flat, runs))
        if distance < VISIBLE:
            raise ValueError(f"{kind} changes nothing: {distance}")


def made(name, row):
    row = {key: copy.deepcopy(part) for key, part in row.items()}  # configs change what they are given
    config, given = config_of(row)
    vocabulary = config.get_text_config().vocab_size
    model_class = (getattr(transformers, row["model"]) if "model" in row
                   else transformers.AutoModelForCausalLM._model_mapping[type(config)])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model_class(config).float().save_pretrained(folder)
        stored = load_file(folder / "model.safetensors")
        stored |= {tensor: torch.empty(shape) for tensor, shape in row.get("more", {}).items()}
        saved = json.loads((folder / "config.json").read_text())
    written = written_config(saved, row, given)
    special = packed(stored) if "quantization_config" in written else {}
    tensors = {tensor: entry_of(tensor, part, row) for tensor, part in stored.items()
               if tensor + "_blocks" not in special}
    tensors = dict(sorted((tensors | special).items()))
    runs = runs_of(name, row, vocabulary)
    logits = sharpened(model_class, written, tensors, runs, row)
    if not special and moved(logits, compute(model_class, saved, tensors, runs)) != 0:
        raise ValueError("the config as the hub spells it gives other logits")
    check_controls(model_class, written, tensors, runs, logits, row)
    check_parts(model_class, written, tensors, runs, logits, row)
    for run, answer in zip(runs, logits):
        run["logits"] = answer.tolist()
    return {"config": written, "tensors": tensors, "runs": runs}


# Files.

def compact(value):
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{compact(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(compact(part) for part in value) + "]"
    if isinstance(value, float):
        rounded = float(f"{value:.{DIGITS}g}")
        return str(int(rounded)) if rounded == int(rounded) and abs(rounded) < 1e6 else repr(rounded)
    return json.dumps(value)


def text_of(fixture):
    runs = ",\n".join(compact(run) for run in fixture["runs"])
    config = json.dumps(fixture["config"], separators=(",", ":"))
    return f'{{\n"config":{config},\n"tensors":{compact(fixture["tensors"])},\n"runs":[\n{runs}\n]\n}}\n'


def main():
    torch.set_num_threads(1)
    FIXTURES.mkdir(exist_ok=True)
    failed = []
    for name in sys.argv[1:] or table.ROWS:
        try:
            torch.manual_seed(0)
            text = text_of(made(name, {"type": name.partition("-")[0]} | table.ROWS[name]))
            (FIXTURES / f"{name}.json").write_text(text)
            print(f"{name}: {len(text)} bytes", flush=True)
        except Exception as error:  # noqa: BLE001: the other rows go on
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    sys.exit(f"failed: {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
