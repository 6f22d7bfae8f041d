# SPDX-License-Identifier: Apache-2.0
"""Every key of config.json that moves transformers' logits moves ours alike, or is refused.

    check_keys.py --binary build/bin/fp8 [--types llama,bert] [--all]

For each family of fixtures/ the keys are those of its config, of transformers' class of it and of SHARED. Each is
changed (a truth value turned round, a number made larger, ...). Where transformers loads the same tensors with it and
gives other logits, `fp8 evaluate` must give the same ones, or name the key and stop; where the logits stay, ours must.
"""

import argparse
import copy
import json
import pathlib
import sys
import tempfile

import make_fixtures
import make_fixtures_table as table
import torch
import transformers
from check_defaults import logits_of

SUBSET = ["llama", "qwen2", "qwen3_moe", "gemma2", "cohere", "gpt2", "bert", "t5"]  # what continuous integration runs
# What transformers' code for all families asks a config for, whatever its class says (masking_utils.py, modeling_rope_utils.py).
SHARED = {"is_causal": [False, True], "per_layer_config": [{"0": {"hidden_act": "gelu"}}], "use_bidirectional_attention": [True],
          "num_local_experts": [3], "num_experts": [3], "attention_chunk_size": [4], "sliding_window": [3], "is_decoder": [True],
          "attn_logit_softcapping": [2.0], "final_logit_softcapping": [2.0], "rope_scaling": [{"rope_type": "linear", "factor": 2.0}]}
SKIPPED = ("model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "pad_token_id", "text_config", "vision_config",
           "attn_implementation", "auto_map")
TOLERANCE = 3e-4


def mutations(value):
    """Other values of a key."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, max(1, value // 2)]
    if isinstance(value, float):
        return [value * 1.5 + 0.25]
    if isinstance(value, list) and len(value) > 1 and value[::-1] != value:
        return [value[::-1]]
    if value in ("silu", "gelu", "gelu_new", "relu", "gelu_pytorch_tanh", "relu2"):
        return ["tanh" if value != "tanh" else "relu"]
    return [True, 0.5, 2] if value is None else []


def keys_of(config, model_class):
    """{key: values to try}"""
    fields = {**{key: getattr(model_class.config_class(), key, None) for key in getattr(model_class.config_class, "__dataclass_fields__", {})}, **config}
    found = {key: mutations(value) for key, value in fields.items()
             if key not in SKIPPED and not make_fixtures.IRRELEVANT.fullmatch(key) and not key.endswith(("token_id", "token_ids"))}
    for key, values in SHARED.items():
        found[key] = [*values, *found.get(key, [])]
    return found


class Family:
    def __init__(self, fixture, name):
        self.config, self.name = fixture["config"], name
        self.model_class = getattr(transformers, self.config["architectures"][0])
        self.tensors = fixture["tensors"]
        self.inputs = {"input_ids": torch.tensor(make_fixtures.token_ids(f"{name} keys", 2, 24, self.config["vocab_size"]))}
        if ({"type": name} | table.ROWS[name]).get("kind") == "both":
            self.inputs["labels"] = torch.tensor(make_fixtures.token_ids(f"{name} answers", 2, 24, self.config["vocab_size"]))

    def logits(self, config, folder):
        """transformers' for a config; raises where it needs other tensors."""
        if not (folder / "config.json").exists():
            make_fixtures.write_checkpoint(folder, config, self.tensors)
        (folder / "config.json").write_text(json.dumps(config))
        model = make_fixtures.load(self.model_class, folder)
        with torch.no_grad():
            return model(**self.inputs).logits

    def problems(self, binary, everything):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            base = self.logits(self.config, folder)
            spread = max(1, base.std().item())
            for key, values in keys_of(self.config, self.model_class).items():
                for value in values:
                    config = copy.deepcopy(self.config) | {key: value}
                    try:
                        expected = self.logits(config, folder)
                    except Exception:  # noqa: BLE001: other tensors, or no model at all
                        continue
                    moved = (expected - base).abs().max().item() / spread > TOLERANCE
                    if not torch.isfinite(expected).all() or not (moved or everything):
                        continue
                    try:
                        found = logits_of(binary, folder, self.inputs).reshape(expected.shape)
                    except ValueError:
                        yield None  # refused
                        continue
                    error = (found - expected).abs().max().item() / spread
                    yield None if error <= TOLERANCE else f"{key} = {value}: {'differs' if moved else 'has no effect there'}, error {error:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--types", help="fixtures, with commas; default those of continuous integration")
    parser.add_argument("--all", action="store_true", help="all families, and keys without an effect too")
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    checked, wrong = 0, 0
    names = [path.stem for path in sorted(make_fixtures.FIXTURES.glob("*.json"))] if arguments.all else SUBSET
    for name in arguments.types.split(",") if arguments.types else names:
        fixture = json.loads((make_fixtures.FIXTURES / f"{name}.json").read_text())
        if fixture["config"].get("text_config") or name not in table.ROWS or "quantization_config" in fixture["config"]:
            continue
        try:
            for problem in Family(fixture, name).problems(arguments.binary, arguments.all):
                checked += 1
                wrong += problem is not None
                if problem:
                    print(f"{name}: {problem}", flush=True)
        except Exception as error:  # noqa: BLE001: the others go on
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            wrong += 1
    print(f"{checked} keys checked, {wrong} wrong")
    sys.exit(1 if wrong or checked < 50 else 0)


if __name__ == "__main__":
    main()
