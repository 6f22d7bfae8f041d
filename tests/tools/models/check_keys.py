# SPDX-License-Identifier: Apache-2.0
"""Every key of config.json that moves transformers' logits moves ours alike, or is refused.

    check_keys.py --binary build/bin/fp8 [--types llama,bert | --all | --part N] [--still]

For each family of fixtures/ the keys are those of its config, of transformers' class of it (other names too) and of
SHARED; of models with images those of their language part too. Each is changed (a truth value turned round, a number
made larger, ...). Where transformers loads the same tensors with it and gives other logits, `fp8 evaluate` must give
the same ones, or name the key and stop; where the logits stay (--still), ours must. All families take four minutes of a
core: without --all a run takes every fifth one, from number N (0 to 4) on.
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

SHARES = 5  # a run takes one of so many parts of the families
# What transformers' code for all families asks a config for, whatever its class says (masking_utils.py, modeling_rope_utils.py).
SHARED = {"is_causal": [False, True], "per_layer_config": [{"0": {"hidden_act": "gelu"}}], "use_bidirectional_attention": [True],
          "num_local_experts": [3], "num_experts": [3], "attention_chunk_size": [4], "sliding_window": [3], "is_decoder": [True],
          "attn_logit_softcapping": [2.0], "final_logit_softcapping": [2.0], "rope_scaling": [{"rope_type": "linear", "factor": 2.0}]}
SKIPPED = ("model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "pad_token_id", "text_config", "vision_config",
           "attn_implementation", "auto_map", "quantization_config")
LANGUAGE = "text_config"
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


def keys_of(config, config_class):
    """{key: values to try}"""
    fields = {**{key: getattr(config_class(), key, None) for key in getattr(config_class, "__dataclass_fields__", {})}, **config}
    fields |= {other: fields.get(key) for other, key in config_class.attribute_map.items()}
    found = {key: mutations(value) for key, value in fields.items()
             if key not in SKIPPED and not make_fixtures.IRRELEVANT.fullmatch(key) and not key.endswith(("token_id", "token_ids"))}
    for key, values in SHARED.items():
        found[key] = [*values, *found.get(key, [])]
    return found


def changed(config, config_class):
    """(key, value, config with it) of a config, and of the config of its language model."""
    for key, values in keys_of(config, config_class).items():
        for value in values:
            yield key, value, copy.deepcopy(config) | {key: value}
    if LANGUAGE in config_class.sub_configs and LANGUAGE in config:
        part = config[LANGUAGE]
        for key, value, other in changed(part, transformers.CONFIG_MAPPING[part["model_type"]]):
            yield f"{LANGUAGE}.{key}", value, config | {LANGUAGE: other}


class Family:
    def __init__(self, fixture, name):
        self.config, self.name = fixture["config"], name
        self.model_class = getattr(transformers, self.config["architectures"][0])
        self.tensors = fixture["tensors"]
        vocabulary = self.config.get(LANGUAGE, self.config)["vocab_size"]
        self.inputs = {"input_ids": torch.tensor(make_fixtures.token_ids(f"{name} keys", 2, 24, vocabulary))}
        if ({"type": name} | table.ROWS[name]).get("kind") == "both":
            self.inputs["labels"] = torch.tensor(make_fixtures.token_ids(f"{name} answers", 2, 24, vocabulary))

    def logits(self, config, folder):
        """transformers' for a config; raises where it needs other tensors."""
        if not (folder / "config.json").exists():
            make_fixtures.write_checkpoint(folder, config, self.tensors)
        (folder / "config.json").write_text(json.dumps(config))
        model = make_fixtures.load(self.model_class, folder)
        with torch.no_grad():
            return model(**self.inputs).logits

    def problems(self, binary, still):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            base = self.logits(self.config, folder)
            spread = max(1, base.std().item())
            for key, value, config in changed(self.config, self.model_class.config_class):
                try:
                    expected = self.logits(config, folder)
                except Exception:  # noqa: BLE001: other tensors, or no model at all
                    continue
                moved = (expected - base).abs().max().item() / spread > TOLERANCE
                if not torch.isfinite(expected).all() or not (moved or still):
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
    parser.add_argument("--types", help="fixtures, with commas")
    parser.add_argument("--all", action="store_true", help="all families")
    parser.add_argument("--part", type=int, default=0, choices=range(SHARES), help="which fifth of them")
    parser.add_argument("--still", action="store_true", help="keys without an effect, too")
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    checked, wrong = 0, 0
    names = [path.stem for path in sorted(make_fixtures.FIXTURES.glob("*.json"))]
    if arguments.types:
        names = arguments.types.split(",")
    elif not arguments.all:
        names = names[arguments.part::SHARES]
        print("this run's families:", ",".join(names), flush=True)
    for name in names:
        fixture = json.loads((make_fixtures.FIXTURES / f"{name}.json").read_text())
        try:
            for problem in Family(fixture, name).problems(arguments.binary, arguments.still):
                checked += 1
                wrong += problem is not None
                if problem:
                    print(f"{name}: {problem}", flush=True)
        except Exception as error:  # noqa: BLE001: the others go on
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            wrong += 1
    print(f"{checked} keys checked, {wrong} wrong")
    sys.exit(1 if wrong or checked < (1 if arguments.types else 50) else 0)


if __name__ == "__main__":
    main()
