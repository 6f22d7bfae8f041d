# SPDX-License-Identifier: Apache-2.0
"""The high precision model's answers, made once per checkpoint and kept beside it."""

import json

import inputs
import roles


def saved_tensors(folder):
    """All tensors of a checkpoint folder by name."""
    from safetensors import safe_open
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as reader:
            for name in reader.keys():
                tensors[name] = reader.get_tensor(name)
    return tensors


def load(class_name, folder, torch):
    """(model, problems with keys)."""
    import transformers
    config = json.loads((folder / "config.json").read_text())
    model_class = getattr(transformers, class_name)
    options = {"dtype": getattr(torch, config["dtype"])}
    quantization = config.get("quantization_config", {})
    if quantization.get("quant_method") == "compressed-tensors" and model_class.forward is torch.nn.Module.forward:
        # compressed-tensors decodes when the model's own forward begins, which such a model has not
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    try:
        model, info = model_class.from_pretrained(folder, **options, output_loading_info=True)
    except AttributeError:  # a class's own from_pretrained that takes the pair for a model
        model, info = model_class.from_pretrained(folder, **options), {}
    problems = {kind: sorted(str(key) for key in info.get(kind) or []) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    return model.eval(), {kind: keys for kind, keys in problems.items() if keys}


def make(class_name, folder, torch):
    """Loads the model in `folder`, finds its inputs and writes reference.pt and roles.json."""
    model, problems = load(class_name, folder, torch)
    runs, failures = inputs.find(model, torch)
    answers = {name: inputs.run(model, kwargs, torch) for name, kwargs in runs.items()}
    for name, outputs in answers.items():
        for key, value in outputs.items():
            if not torch.isfinite(value).any() or value.float().nan_to_num(0, 0, 0).std() == 0:
                raise ValueError(f"the high precision model's {key} on {name} cannot be compared (not finite, or all the same)")
    table = roles.roles(model, saved_tensors(folder))
    (folder / "roles.json").write_text(json.dumps(table, indent=0))
    torch.save({"runs": runs, "answers": answers, "problems": problems, "failures": failures[:20]}, folder / "reference.pt")
    return list(runs)


def read(folder, torch):
    """(the reference's inputs and answers, {tensor: (role, module)})."""
    return torch.load(folder / "reference.pt", weights_only=True), json.loads((folder / "roles.json").read_text())
