# SPDX-License-Identifier: Apache-2.0
"""One type in one form: quantized by the tool, loaded by transformers, compared with the high precision model and with
what --check said of it."""

import json
import pathlib
import re
import shutil
import subprocess

import inputs
import reference

LARGEST_ERROR = 0.2    # relative error of the logits
LARGEST_KL = 2e-2
COARSE = 2             # times these: where one scale is for all of a tensor, or a power of two
LEAST_SHARE = 0.95     # of the linear weights' elements in fp8

HEAD = re.compile(r"(lm_head|score|classifier(\.out_proj)?|qa_outputs)\.weight$")  # the last layer, not those before it

STATIC = "--measurements"  # its value is the type's measurement
BLOCK = ["--scheme", "block:32"]
FORMS = {
    "dynamic": ["--dynamic"],
    "block": ["--dynamic", *BLOCK],
    "weights-only": ["--weights-only"],
    "mx": ["--dynamic", "--scheme", "mx"],
}
USUAL = tuple(FORMS)  # of every type; the others show that --check knows the schemes of a form
FORMS |= {
    "dynamic-tensor": ["--dynamic", "--scheme", "tensor"],
    "weights-tensor": ["--weights-only", "--scheme", "tensor"],
    "weights-block": ["--weights-only", *BLOCK],
    "static-tensor": [STATIC],
    "static-channel": [STATIC, "--scheme", "channel"],
    "static-kv": [STATIC, "--kv-cache", "fp8"],
    "fp8-tensor": ["--dynamic", "--scheme", "tensor", "--format", "fp8"],
    "fp8-static": [STATIC, "--format", "fp8"],
    "fp8-block": ["--dynamic", *BLOCK, "--format", "fp8"],
    "fp8-kv": ["--dynamic", *BLOCK, "--format", "fp8", STATIC, "--kv-cache", "fp8"],
}
COARSELY_SCALED = ("dynamic-tensor", "weights-tensor", "static-tensor", "static-kv", "fp8-tensor", "fp8-static", "mx")
BLOCKS = ("block", "mx", "weights-block", "fp8-block", "fp8-kv")


def run(binary, arguments, folder):
    """Runs the tool: (its message when it refuses, else None; what it prints)."""
    done = subprocess.run([*map(str, [binary, *arguments]), "--quiet", "--threads", "1"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 0:
        return None, done.stdout
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
    reason = next((line for line in lines if "error" in line.lower()), lines[-1])
    return reason.removeprefix("fp8: error: ").removeprefix(f"{folder}: "), ""


def measure(binary, folder, out):
    """(why the tool can't measure the model, else None; the folder of its measurement)"""
    import torch
    from safetensors.torch import save_file
    ids = pathlib.Path(out).with_suffix(".safetensors")
    save_file({"input_ids": torch.randint(3, 250, (16, 32), generator=torch.Generator().manual_seed(1))}, ids)
    reason, _ = run(binary, ["measure", "--model", folder, "--data", ids, "--seq-len", "32", "--out", out], folder)
    return reason, out


def options_of(form, stats):
    """stats: the folder of the type's measurement."""
    return [word for option in FORMS[form] for word in ([option, stats] if option == STATIC else [option])]


def quantize(binary, folder, out, options, more):
    """(its message when it refuses, else None; its report, with what --check says of readers)"""
    shutil.rmtree(out, ignore_errors=True)
    reason, text = run(binary, ["quantize", "--model", folder, "--out", out, *options, *more, "--check", "--json"], folder)
    return reason, json.loads(text) if text else {}


def misfits(report):
    """Modules whose sizes no block or group divides, and what readers run as one product with them."""
    return {skipped["name"] for skipped in report["modules_skipped"] if re.search(r"no multiple of|one product with", skipped["reason"])}


def fp8_share(source_roles, sizes, out, wanted, unfit):
    """(share of the linear weights' elements that are fp8 in the file, modules in fp8, linear weights that are kept, heads
    that are not).
    wanted: the roles that are looked at; unfit: modules that are not."""
    from safetensors import safe_open
    fp8 = {}
    for file in sorted(out.glob("*.safetensors")):
        with safe_open(file, "pt") as reader:
            for name in reader.keys():
                part = reader.get_slice(name)
                if part.get_dtype() == "F8_E4M3":
                    size = 1
                    for extent in part.get_shape():
                        size *= extent
                    fp8[name] = size
    total = written = 0
    kept = []
    for name, (role, _) in source_roles.items():
        if role not in wanted or name.removesuffix(".weight") in unfit:
            continue
        total += sizes[name]
        if name in fp8:
            written += sizes[name]
        else:
            kept.append(name)
    heads = [name for name in fp8 if source_roles.get(name, ("",))[0] == "head" and HEAD.search(name)]
    return (written / total if total else 1.0), len(fp8), kept, heads


def difference(answers, runs, model, torch):
    """{run: (relative error, KL)} of a model against the reference's answers."""
    result = {}
    for name, kwargs in runs.items():
        outputs = inputs.run(model, kwargs, torch)
        error = kl = 0.0
        for key, want in answers[name].items():
            have = outputs[key]
            good = torch.isfinite(want)  # some heads put -inf on what can never be
            if not torch.isfinite(have[good]).all():
                return {name: (float("nan"), float("nan"))}
            error = max(error, float((have[good] - want[good]).norm() / want[good].norm().clamp_min(1e-12)))
            if "logits" in key:
                p, q = (torch.log_softmax(t.nan_to_num(-1e9, 1e9, -1e9), -1) for t in (want, have))
                kl = max(kl, float((p.exp() * (p - q)).sum(-1).mean()))
        result[name] = (error, kl)
    return result


def fold(names):
    """Layer numbers replaced by N, each pattern once."""
    return sorted({re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name) for name in names})


def loaded(class_name, out, saved, slack, torch):
    """What transformers does with a written folder: ({what the row tells of it}, why it is not the model; empty: it is).
    slack: times the largest errors."""
    try:
        model, problems = reference.load(class_name, out, torch)
    except Exception as error:  # noqa: BLE001: whatever the reader says is the cause
        return {}, ["load: " + first_line(error)]
    problems = {kind: [key for key in keys if key not in saved["problems"].get(kind, [])] for kind, keys in problems.items()}
    problems = {kind: fold(keys) for kind, keys in problems.items() if keys}
    causes = [keys_text(problems)] if problems else []
    try:
        errors = difference(saved["answers"], saved["runs"], model, torch)
    except Exception as error:  # noqa: BLE001
        return {"keys": problems}, ["run: " + first_line(error), *causes]
    causes += [f"{name}: relative error {error:.3g}, KL {kl:.3g}" for name, (error, kl) in errors.items()
               if not error <= slack * LARGEST_ERROR or not kl <= slack * LARGEST_KL]
    return {"keys": problems, "errors": {name: [round(e, 5), float(f"{kl:.3g}")] for name, (e, kl) in errors.items()}}, causes


def judged(said, causes):
    """The verdict on what --check said of transformers, beside what transformers did: right, wrong, unread (it fails, as
    --check says), not known (--check has no rules)."""
    if said["loads"] is None:
        return "not known", causes
    if said["loads"]:
        return ("wrong" if causes else "right"), causes
    return ("unread", said["problems"][:1]) if causes else ("wrong", [f"--check says that transformers refuses it: {said['problems'][0]}"])


def check(model_type, class_name, folder, form, stats, binary, work, more, torch):
    """One row of the table: verdict (right, wrong, unread, not known, refused), cause, modules in fp8, kept, share, errors."""
    saved, roles = reference.read(folder, torch)
    row = {"type": model_type, "class": class_name, "form": form, "verdict": "wrong", "cause": ""}
    out = pathlib.Path(work) / f"{model_type}-{form}"
    try:
        reason, report = quantize(binary, folder, out, options_of(form, stats), more)
        if reason:
            return row | {"verdict": "refused", "cause": reason}
        sizes = {name: tensor.numel() for name, tensor in reference.saved_tensors(folder).items()}
        share, modules, kept, heads = fp8_share(roles, sizes, out, ("linear",) if "--experts" in more else ("linear", "experts"),
                                         misfits(report) if form in BLOCKS else ())
        row |= {"share": round(share, 4), "modules": modules, "kept": fold(kept)}
        readers = {verdict["reader"]: verdict for verdict in report["readers"]}
        did, causes = loaded(class_name, out, saved, COARSE if form in COARSELY_SCALED else 1, torch)
        verdict, causes = judged(readers["transformers"], causes)
        row |= did | {"rules": [verdict["rules"] for verdict in readers.values()], "vllm": readers["vLLM"]["loads"]}
        bad = [f"heads in fp8: {' '.join(fold(heads)[:4])}"] if heads else []
        if share < LEAST_SHARE:
            bad.append(f"{100 * share:.1f} % of the linear weights in fp8, kept: {' '.join(fold(kept)[:4])}")
        if verdict == "unread":  # by vLLM alone, which takes experts where transformers does not
            bad = []
        return row | {"verdict": "wrong" if bad else verdict, "cause": "; ".join(causes + bad)}
    finally:
        shutil.rmtree(out, ignore_errors=True)


def keys_text(problems):
    return "".join(f" {kind.split('_')[0]} {len(keys)}: {' '.join(keys[:3])}" for kind, keys in problems.items())


def first_line(error):
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0]}"[:240]


def has_linear(folder):
    roles = json.loads((folder / "roles.json").read_text())
    return any(role in ("linear", "merged", "experts", "stacked") for role, _ in roles.values())


def has_stacked(folder):
    roles = json.loads((folder / "roles.json").read_text())
    return any(role == "stacked" for role, _ in roles.values())
