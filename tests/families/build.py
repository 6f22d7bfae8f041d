# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of transformers' model types, kept in a cache outside the repository."""

import copy
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil

import hints
import reference
import roles
import shrink


def rules():
    """A name for what decides the checkpoints: other rules make other files."""
    here = pathlib.Path(__file__).parent
    text = b"".join((here / name).read_bytes() for name in ("build.py", "hints.py", "inputs.py", "reference.py", "roles.py", "shrink.py"))
    return hashlib.sha256(text).hexdigest()[:12]


CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fp8" / "families" / rules()

# transformers' auto maps, the most telling first: a type is tested with its class in the first map that has it.
MAPS = [
    ("image-text", "MODEL_FOR_IMAGE_TEXT_TO_TEXT"),
    ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM"),
    ("speech", "MODEL_FOR_SPEECH_SEQ_2_SEQ"),
    ("multimodal", "MODEL_FOR_MULTIMODAL_LM"),
    ("masked", "MODEL_FOR_MASKED_LM"),
    ("causal", "MODEL_FOR_CAUSAL_LM"),
    ("ctc", "MODEL_FOR_CTC"),
    ("zero-shot-image", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION"),
    ("image", "MODEL_FOR_IMAGE_CLASSIFICATION"),
    ("audio", "MODEL_FOR_AUDIO_CLASSIFICATION"),
]


# The run that shows that a kind of model works.
WANTED = {"image-text": "image", "image": "image", "zero-shot-image": "image", "speech": "sound", "ctc": "sound", "audio": "sound"}
LARGEST = 30e6  # parameters
LABELLED, LABELS = ("image", "audio"), 40  # the relative error of two logits would be anything


def model_types():
    """{model type: (kind, class name)} of every architecture that is tested."""
    from transformers.models.auto import modeling_auto
    types = {}
    for kind, name in MAPS:
        for model_type, classes in getattr(modeling_auto, name + "_MAPPING_NAMES").items():
            names = [classes] if isinstance(classes, str) else list(classes)
            types.setdefault(model_type, (kind, names[0]))
    for model_type, (kind, name) in hints.CLASSES.items():
        types[model_type] = (kind, name)
    for variant, hint in hints.VARIANTS.items():
        types[variant] = hint.get("class", types[variant.partition("@")[0]])
    return {model_type: types[model_type] for model_type in sorted(types) if model_type not in hints.NOT_MODELS}


def merge(into, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def default_config(model_type):
    from transformers import CONFIG_MAPPING
    return CONFIG_MAPPING[model_type](**hints.DEFAULTS.get(model_type, {}))


def tiny_config(name, uniform):
    """The small config of a model type, or of a variant TYPE@WORD."""
    from transformers import CONFIG_MAPPING
    model_type = name.partition("@")[0]
    uniform = hints.VARIANTS.get(name, {}).get("sizes", uniform)
    values = shrink.shrink(default_config(model_type), uniform=uniform)
    if model_types()[name][0] in LABELLED:
        values["num_labels"] = LABELS
    for hint in hints.of(name):
        merge(values, hint)
    return CONFIG_MAPPING[model_type](**values)


def randomize(model, torch, gain):
    """Random values everywhere, zeros and ones too: a gate that starts at 0 would hide what lies behind it."""
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2 and parameter.shape[-1] > 4:
                fan_in = parameter[0].numel() if parameter.dim() != 3 else min(parameter.shape[1:])
                parameter.copy_(noise * max(fan_in, 16) ** -0.5 * (1.0 if "emb" in name or "head" in name else gain))
            else:
                parameter.add_(0.05 * noise)
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.mul_(0.5)  # normalized queries and keys without training choose one token


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def build(model_type, class_name, folder, uniform, dtype):
    """Saves the tiny model to `folder`; returns its number of parameters. Raises whatever the model's own code does."""
    import torch
    import transformers
    config = tiny_config(model_type, uniform)
    model_class = getattr(transformers, class_name)
    try:
        with torch.device("meta"):
            count = count_parameters(model_class(config))
    except Exception:  # noqa: BLE001: some models compute while they are made
        count = 0
    if count > LARGEST:
        raise ValueError(f"{count} parameters: not tiny")
    torch.manual_seed(1)
    model = model_class(config).eval()
    count = count_parameters(model)
    model = model.to(getattr(torch, dtype))
    randomize(model, torch, hints.GAINS.get(model_type, hints.EXPERTS_GAIN if roles.experts_of(config) else 1.0))
    model.tie_weights()
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **hints.VARIANTS.get(model_type, {}).get("save", {}))
    for name, value in hints.FILES.get(model_type, {}).items():
        torch.save(value, folder / name)
    (folder / "built.json").write_text(json.dumps({"class": class_name, "parameters": count, "uniform": uniform,
                                                       "dtype": dtype}))
    return count


def prepare(model_type, again=False):
    """The folder of a type's checkpoint with its reference answers, made at the first call.

    Different sizes for text and towers come first; a model that cannot run with those gets uniform ones, and float32
    where its code mixes types."""
    import torch
    needed = hints.NEEDS.get(model_type)
    if needed and importlib.util.find_spec(needed) is None:
        raise ImportError(f"needs {needed}, which is not installed")
    kind, class_name = model_types()[model_type]
    folder = CACHE / model_type
    if (folder / "reference.pt").exists() and not again:
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    temporary = CACHE / f".{model_type}.{os.getpid()}"
    failures, best = [], None
    attempts = [(False, "bfloat16"), (True, "bfloat16"), (False, "float32")]
    for uniform, dtype in [(False, hints.DTYPES[model_type])] if model_type in hints.DTYPES else attempts:
        if dtype == "float32" and best is not None:
            break
        try:
            build(model_type, class_name, temporary, uniform, dtype)
            runs = reference.make(class_name, temporary, torch)
        except Exception as error:  # noqa: BLE001: any failure of a model's own code is reported as it is
            failures.append(error)
            continue
        if best is None or len(runs) > len(best):
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
            best = runs
        if WANTED.get(kind, "text") in best:
            break
    shutil.rmtree(temporary, ignore_errors=True)
    if best is None:
        raise failures[0]
    return folder
