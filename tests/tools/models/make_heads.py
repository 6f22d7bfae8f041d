# SPDX-License-Identifier: Apache-2.0
"""Writes heads.json: which heads transformers ties to the word table, and what it computes with either kind.

    make_heads.py

    ties     for a config and each value of its tie_word_embeddings (null: missing; of the whole model, of its text
             part): whether the model's classes tie the head
    heads    for a fixture (make_fixtures.py), its key and checkpoints without and with a head of their own: the first
             logits of the last position of its last run, or null where transformers misses a tensor
"""

import copy
import json
import pathlib
import re
import tempfile

import make_fixtures
import make_fixtures_table as table
import torch
import transformers
from safetensors.torch import load_file

OUT = pathlib.Path(__file__).parent / "heads.json"
KEY = "tie_word_embeddings"
HEAD = re.compile(r"(^|[._])(lm_head|embed_out|vocab_projector|decoder)\.weight$")
SHOWN = 16  # logits
ONE_LAYER = {"num_hidden_layers": 1}
WITHOUT_FIXTURES = [
    {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "text_config": ONE_LAYER},
    {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
     "text_config": ONE_LAYER | {"model_type": "gemma3_text"}},
    {"model_type": "llava_next", "architectures": ["LlavaNextForConditionalGeneration"],
     "text_config": ONE_LAYER | {"model_type": "llama"}},
    {"model_type": "llava_next", "architectures": ["LlavaNextForConditionalGeneration"],
     "text_config": ONE_LAYER | {"model_type": "gemma3_text"}},
    {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
     "text_config": ONE_LAYER | {"model_type": "mistral"}},
]


def with_key(config, whole, part):
    """The config with its keys set, or left out for None."""
    config = copy.deepcopy(config)
    for place, value in ((config, whole), (config.get("text_config"), part)):
        if place is not None:
            place.pop(KEY, None)
            if value is not None:
                place[KEY] = value
    return config


def class_of(config):
    return getattr(transformers, config["architectures"][0])


def is_tied(config):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = class_of(config)(read)
    return any(HEAD.search(name) for name in model.get_expanded_tied_weights_keys(all_submodels=True))


def ties_of(config):
    words = (None, True, False)
    parts = words if "text_config" in config else (None,)
    return [[whole, part, is_tied(with_key(config, whole, part))] for whole in words for part in parts]


def stored(config):
    """The tensors of a checkpoint of the model with this config."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config))
        class_of(config)(transformers.AutoConfig.from_pretrained(folder)).float().save_pretrained(folder)
        return load_file(folder / "model.safetensors")


def own_head(name, fixture):
    """What a checkpoint has for a head that is not tied: {tensor: entry}."""
    there = {tensor: entry for tensor, entry in fixture["tensors"].items() if HEAD.search(tensor)}
    if there:
        return there
    more = {tensor: values for tensor, values in stored(with_key(fixture["config"], False, False)).items()
            if tensor not in fixture["tensors"] and HEAD.search(tensor.replace(".bias", ".weight"))}
    if not more and fixture["config"]["model_type"] == "t5":  # whose classes tie it always
        more = {"lm_head.weight": torch.empty(48, 64)}
    return {tensor: make_fixtures.entry_of(tensor, values, table.ROWS[name]) for tensor, values in more.items()}


def logits_of(config, tensors, run):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        make_fixtures.write_checkpoint(folder, config, tensors)
        model, info = class_of(config).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"]:
            return None
        run = {key: part for key, part in run.items() if key in ("ids", "decoder_ids")} | {"positions": [-1]}
        return make_fixtures.answers(model.eval(), [run])[0][0, 0, :SHOWN].tolist()


def heads_of(name, fixture):
    own = own_head(name, fixture)
    words = {tensor: entry for tensor, entry in fixture["tensors"].items() if tensor not in own}
    logits, cases = [], []
    for key in (None, True, False):
        config = with_key(fixture["config"], key, key)
        for has_own in (False, True) if own else (False,):
            found = logits_of(config, words | own if has_own else words, fixture["runs"][-1])
            if found is not None and found not in logits:
                logits.append(found)
            cases.append([key, has_own, None if found is None else logits.index(found)])
    return {"own": own, "cases": cases, "logits": logits}


def is_first(name):
    """Of the fixtures of a family; and DeBERTa's other head."""
    return "-" not in name.replace("xlm-", "").replace("-v2", "") or name == "deberta-v2-conv"


def main():
    torch.set_num_threads(1)
    fixtures = {path.stem: json.loads(path.read_text()) for path in sorted(make_fixtures.FIXTURES.glob("*.json"))
                if is_first(path.stem)}
    # The new head of DeBERTa's is the word table without being tied.
    configs = [fixture["config"] for name, fixture in fixtures.items() if name != "deberta-v2-conv"] + WITHOUT_FIXTURES
    ties = [{"config": config, "says": ties_of(config)} for config in configs]
    heads = {name: heads_of(name, fixture) for name, fixture in fixtures.items()}
    listed = ",\n".join(map(make_fixtures.compact, ties))
    named = ",\n".join(f'"{name}":{make_fixtures.compact(part)}' for name, part in heads.items())
    OUT.write_text(f'{{\n"ties":[\n{listed}\n],\n"heads":{{\n{named}\n}}\n}}\n')
    print(f"{len(ties)} configs, {len(heads)} fixtures, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
