# SPDX-License-Identifier: Apache-2.0
"""Seconds for a text on one thread, ours and those of `tokenizers`, line by line, without reading the files.

    python3 time_tokenizers.py BUILD TRAINING_TEXT TEXT... [--megabytes 100] [--kinds gpt2 bert_uncased ...]
                                                                                       (pip: tokenizers, sentencepiece)

The texts are repeated to that many megabytes. Prints {"kind", "ours", "theirs", "ratio"}, one JSON line a kind; both give
the same number of ids. Vocabularies have 8 000 tokens.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizer_kinds
from compare_tokenizers import charsmap, training_lines
from tokenizers import Tokenizer

KINDS = ["gpt2", "llama3", "qwen2", "llama2_metaspace", "gemma", "clip", "bert_uncased", "xlm_r", "t5", "albert"]


def text_of(paths, size):
    whole = b"".join(path.read_bytes() + b"\n" for path in paths)
    return (whole * (size // len(whole) + 1))[:size].rsplit(b"\n", 1)[0] + b"\n"


def theirs(folder, text):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines, ids = text.decode("utf8", "replace").split("\n")[:-1], 0
    start = time.perf_counter()
    for begin in range(0, len(lines), 1000):
        ids += sum(len(e.ids) for e in tokenizer.encode_batch_fast(lines[begin:begin + 1000]))
    return time.perf_counter() - start, ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("training", type=pathlib.Path)
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    options = parser.parse_args()
    tokenizer_kinds.VOCAB = 8000
    training, text, slower = training_lines(options.training), text_of(options.texts, options.megabytes * 1000000), 0
    rules = charsmap(training)
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            (folder / "tokenizer.json").write_text(tokenizer_kinds.KINDS[kind](training, rules).to_str(), encoding="utf8")
            (folder / "text.txt").write_bytes(text)
            run = subprocess.run([options.build / "bin/tokenizer_lines", folder, folder / "text.txt"], check=True, capture_output=True)
            ours = json.loads(run.stdout)
            seconds, ids = theirs(folder, text)
            assert ids == ours["ids"], (kind, ids, ours)
            ratio = ours["seconds"] / seconds
            print(json.dumps({"kind": kind, "ours": ours["seconds"], "theirs": round(seconds, 3), "ratio": round(ratio, 3)}), flush=True)
            slower += ratio > 1
    return min(slower, 1)


if __name__ == "__main__":
    sys.exit(main())
