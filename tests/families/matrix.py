#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The matrix of families: every architecture of transformers with linear layers, in the forms that it loads.

  matrix.py --binary build/bin/fp8                         all types (tools/test --families)
  matrix.py --binary build/bin/fp8 --types llama,t5,llava  some
  matrix.py --binary build/bin/fp8 --subset                the dozen and a half that continuous integration runs

Each type's tiny random checkpoint is made once in ~/.cache/fp8/families, quantized with `fp8 quantize`, loaded with
transformers and compressed-tensors, run on text and, where there are towers, on an image or a sound, and compared with
the high precision model, and with what `fp8 quantize --check` says of transformers. A row is right (it says that
transformers loads the file, which computes what the model does), unread (it says that transformers does not, which
fails), wrong (with the cause: all else), not known (it has no rules), refused (with the tool's reason) or not measured
(static scales of an architecture that `fp8 measure` does not run)."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
warnings.filterwarnings("ignore")

import build  # noqa: E402
import check  # noqa: E402
import hints  # noqa: E402

# Across the field: dense and MoE decoders, encoders, encoder-decoders, state spaces, towers for images and sound.
SUBSET = ["llama", "qwen3_moe", "mixtral", "deepseek_v3", "llama4", "gemma3", "bert", "modernbert", "t5", "bart", "bloom", "falcon",
          "mamba", "gpt2", "clip", "vit", "llava", "qwen2_5_vl", "whisper"]
ALL_FORMS = ["llama", "qwen3_moe", "mixtral", "llama4"]  # those of the subset that are seen in more than the usual forms


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the tool: build/bin/fp8")
    parser.add_argument("--types", help="model types, with commas; default all")
    parser.add_argument("--subset", action="store_true", help="the types that continuous integration runs")
    parser.add_argument("--forms", default=",".join(check.FORMS), help="default %(default)s")
    parser.add_argument("--options", default="", help="more options of fp8 quantize: --options='--towers fp8'")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--json", help="file for all rows")
    parser.add_argument("--table", help="file for the table (Markdown)")
    parser.add_argument("--work", help="folder for the fp8 checkpoints; default a temporary one")
    return parser.parse_args(arguments)


def check_types(types, options):
    """The rows of some types, in this process."""
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    known, rows = build.model_types(), []
    for model_type in types:
        kind, class_name = known[model_type]
        start = time.time()
        try:
            folder = build.prepare(model_type)
        except Exception as error:  # noqa: BLE001
            rows.append({"type": model_type, "kind": kind, "class": class_name, "form": "-", "verdict": "not built",
                         "cause": check.first_line(error)})
            print_row(rows[-1])
            continue
        if not check.has_linear(folder):
            rows.append({"type": model_type, "kind": kind, "class": class_name, "form": "-", "verdict": "no linear",
                         "cause": "no linear weight outside embeddings, heads, routers and towers"})
            print_row(rows[-1])
            continue
        more = ["--experts", "keep"] if options["experts"] and keeps_experts(model_type, folder) else []
        more += options["more"]
        stats = None
        for form in options["forms"] if not options["subset"] or model_type in ALL_FORMS else check.USUAL:
            row = {"type": model_type, "class": class_name, "form": form}
            try:
                if check.STATIC in check.FORMS[form] and stats is None:
                    stats = check.measure(options["binary"], folder, pathlib.Path(options["work"]) / f"{model_type}-stats")
                reason, measured = stats if check.STATIC in check.FORMS[form] else (None, None)
                if reason:
                    row |= {"verdict": "not measured", "cause": reason}
                else:
                    row = check.check(model_type, class_name, folder, form, measured, options["binary"], options["work"], more, torch)
            except Exception as error:  # noqa: BLE001: one type's trouble must not hide the others
                row |= {"verdict": "wrong", "cause": "check: " + check.first_line(error)}
            rows.append(row | {"kind": kind, "seconds": round(time.time() - start, 1)})
            print_row(rows[-1])
    return rows


def keeps_experts(model_type, folder):
    """Whether transformers takes this type's experts stacked only, so not in fp8. Variants are families whose usual
    checkpoints have them one by one."""
    return check.has_stacked(folder) and "@" not in model_type and model_type not in hints.EXPERTS_ONE_BY_ONE


def print_row(row):
    numbers = " ".join(f"{run} {error:.3g}/{kl:.2g}" for run, (error, kl) in row.get("errors", {}).items())
    print(f"{row['verdict']:12} {row['type']:26} {row['form']:14} {row.get('modules', ''):4} {numbers} {row['cause']}".rstrip(), flush=True)


VERDICTS = ("right", "unread", "wrong", "not known", "refused", "not measured", "no linear", "not built")

HEADING = f"""<!-- SPDX-License-Identifier: Apache-2.0 -->
# The matrix of families

Results of the last run of `tests/families/matrix.py`. A tiny random checkpoint of each type is quantized by `fp8
quantize` in each form, loaded with transformers and compressed-tensors (versions: tools/setup) and compared with the
high precision model: relative error of the logits at most {check.LARGEST_ERROR}, KL at most {check.LARGEST_KL} (twice that with one scale per
tensor or powers of two), at least {100 * check.LEAST_SHARE:.0f} % of the linear weights' elements in fp8 outside embeddings, heads, routers and
towers. What `fp8 quantize --check` says of transformers must be what happens: a form is right where both accept the
file, unread where both do not, and wrong where they differ. A line has the forms of one verdict, with their largest
error and KL. Static forms are those of types that `fp8 measure` runs.

    ./tools/test --families --table tests/families/table.md

"""


def table(rows):
    """Markdown: one line for the forms of a type that have the same verdict for the same reason."""
    lines = [HEADING + "| type | class | verdict | forms | modules in fp8 | relative error | KL | cause |", "|---|---|---|---|---|---|---|---|"]
    groups = {}
    for row in rows:
        if row["verdict"] == "not measured":
            continue
        said = "" if row["verdict"] == "right" else re.sub(r"^\S+\.\S+: ", "", row["cause"])  # without the module
        said = said if len(said) <= 160 else said[:157] + "..."
        groups.setdefault((row["type"], row["class"], row["verdict"], said), []).append(row)
    for (model_type, class_name, verdict, said), group in groups.items():
        pairs = [pair for row in group for pair in row.get("errors", {}).values() if verdict == "right"]
        modules = sorted({row["modules"] for row in group if "modules" in row})
        lines.append(" | ".join([f"| {model_type}", class_name, verdict, " ".join(row["form"] for row in group),
                                 " to ".join(str(count) for count in dict.fromkeys((*modules[:1], *modules[-1:]))),
                                 f"{max(error for error, _ in pairs):.3g}" if pairs else "", f"{max(kl for _, kl in pairs):.2g}" if pairs else "",
                                 said.replace("|", "\\|")]) + " |")
    return "\n".join(lines) + "\n"


def main(arguments):
    options = parse(arguments)
    known = build.model_types()
    types = SUBSET if options.subset else options.types.split(",") if options.types else list(known)
    unknown = [name for name in types if name not in known]
    forms = options.forms.split(",")
    if unknown or set(forms) - set(check.FORMS):
        print(f"matrix.py: found {unknown or forms}, allowed: transformers' model types, forms {', '.join(check.FORMS)}", file=sys.stderr)
        return 2
    binary = str(pathlib.Path(options.binary).resolve())
    text = subprocess.run([binary, "quantize", "--help-all"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as temporary:
        given = {"binary": binary, "forms": forms, "subset": options.subset, "work": options.work or temporary, "experts": "--experts" in text,
                 "more": options.options.split()}
        if options.jobs == 1:
            rows = check_types(types, given)
        else:
            parts = [types[i::4 * options.jobs] for i in range(4 * options.jobs)]
            with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
                rows = [row for part in pool.map(check_types, parts, [given] * len(parts)) for row in part]
    rows.sort(key=lambda row: (row["type"], list(check.FORMS).index(row["form"]) if row["form"] in check.FORMS else 0))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    if options.table:
        pathlib.Path(options.table).write_text(table(rows))
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in VERDICTS}
    print(f"{len({row['type'] for row in rows})} types: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
