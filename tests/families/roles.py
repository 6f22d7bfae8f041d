# SPDX-License-Identifier: Apache-2.0
"""What each tensor of a checkpoint is to the model that reads it: found by its content in the loaded model."""

import hashlib
import re

import inputs

TOWER = re.compile(
    r"(^|\.)(vision\w*|video_tower|visual\w*|image_(encoder|tower|newline|model)\w*|audio\w*|sound\w*|speech(_\w+)?|\w*projector\w*|connector|aligner"
    r"|mm_\w*|embed_vision|embed_audio|qformer|query_tokens|vqmodel|vq_\w*|resampler|perceiver_resampler|multi_modal\w*|codec\w*"
    r"|merger|mimi|embed_tokens_extend|language_projection|acoustic\w*|semantic_\w*|conformer\w*|patch_embed\w*)(\.|$)")
ROUTER = re.compile(r"(^|\.)(router|gate|\w*_gate|classifier|gate_proj_router|\w*router\w*)(\.|$)")
LINEARS = ("Linear",)


def digest(tensor):
    data = tensor.detach().reshape(-1).double().numpy().tobytes()
    return hashlib.sha1(str(tensor.dtype).encode() + data).digest()


def class_names(module):
    return [base.__name__ for base in type(module).__mro__]


def experts_of(config):
    text = inputs.text_config(config)
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    text = getattr(text, "ffn_config", text)
    return {value for value in (getattr(text, name, None) for name in names) if isinstance(value, int) and value > 1}


def tied_modules(model):
    """Modules of `_tied_weights_keys`: one weight under two names, which one of them often uses without its module."""
    names = set()
    for path, module in model.named_modules():
        keys = getattr(module, "_tied_weights_keys", None)
        for pair in keys.items() if isinstance(keys, dict) else ():
            names |= {".".join(part for part in (path, key.rpartition(".")[0]) if part) for key in pair}
    return names


def head_modules(model):
    """Modules that make the output: the head, and what is tied to an embedding."""
    heads = set()
    try:
        head = model.get_output_embeddings()
    except (NotImplementedError, AttributeError):
        head = None
    embeddings = {p.data_ptr() for m in model.modules() if "Embedding" in "".join(class_names(m)) for p in m.parameters(recurse=False)}
    tied_names = tied_modules(model)
    for name, module in model.named_modules(remove_duplicate=False):
        tied = name in tied_names or any(p.data_ptr() in embeddings for p in module.parameters(recurse=False))
        if module is head or (tied and "Linear" in class_names(module)):
            heads.add(name)
    return heads


HEAD = re.compile(r"(^|\.)(\w*lm_head\w*|heads?|cls|classifier|score|\w*_head|output_projection|proj_out|predictions|vocab_\w+|generator_lm_head"
                  r"|classification_head|fc|logits_dense|pre_classifier|qa_outputs|pooler|text_projection|visual_projection)(\.|$)")


def role_of_module(name, module, heads, experts):
    """linear, experts, embedding, head, router, tower or other."""
    bases = class_names(module)
    if TOWER.search(name):
        return "tower"
    if "Embedding" in "".join(bases[:1]) or "Embedding" in bases:
        return "embedding"
    if name in heads:
        return "head"
    if "Linear" in bases:
        if HEAD.search(name) and ".layers." not in name and ".layer." not in name:
            return "head"
        if getattr(module, "out_features", 0) in experts | {1} and ROUTER.search(name):
            return "router"
        return "linear"
    return "other"


def row_index(model):
    """{the first values of a row or a column: name of the parameter}, for what is merged, cut or transposed on load."""
    rows = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.dim() >= 2:
            for tensor in (parameter, parameter.transpose(-1, -2)):
                for row in tensor.detach().reshape(-1, tensor.shape[-1])[:, :8].float().numpy():
                    rows.setdefault(row.tobytes(), name)
    return rows


def roles(model, saved):
    """{name in the checkpoint: (role, name of the module that reads it)} for weights of two and more dimensions."""
    modules = dict(model.named_modules(remove_duplicate=False))
    by_content = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_content.setdefault(digest(parameter), []).append(name)
    saved = {name: tensor for name, tensor in saved.items() if tensor.dim() >= 2 and tensor.is_floating_point()}
    rows = {} if all(digest(tensor) in by_content for tensor in saved.values()) else row_index(model)
    heads, experts = head_modules(model), experts_of(model.config)
    result = {}
    for name, tensor in saved.items():
        found = by_content.get(digest(tensor))
        if found:
            embeddings = [n for n in found if "Embedding" in class_names(modules[n.rpartition(".")[0]])]
            reader = name if name in found else min(embeddings or found, key=len)
            merged = False
        else:
            keys = [t.reshape(-1, t.shape[-1])[0, :8].float().numpy().tobytes() for t in (tensor, tensor.transpose(-1, -2))]
            reader = next((rows[key] for key in keys if key in rows), None)
            merged = True
        if reader is None:
            result[name] = ("other", "")
            continue
        module_name, _, leaf = reader.rpartition(".")
        module = modules[module_name]
        role = role_of_module(module_name, module, heads, experts)
        if role == "linear" and merged:
            role = "merged"  # a Linear that is cut or joined on load
        if role == "other" and "expert" in reader.lower():
            parameter = module._parameters.get(leaf)
            if parameter is not None and parameter.dim() == 3:
                role = "experts" if tensor.dim() == 2 else "stacked"
        result[name] = (role, module_name)
    if not any(role in ("linear", "merged", "experts", "stacked") for role, _ in result.values()):  # the tower is the model
        lone = {name for name, (role, module) in result.items() if role == "tower" and "Linear" in class_names(modules[module])}
        result |= {name: ("linear", result[name][1]) for name in lone}
    return result
