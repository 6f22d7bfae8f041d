# SPDX-License-Identifier: Apache-2.0
"""Our ids and our decoding against Hugging Face's on many tricky lines, for a tokenizer of every kind (tokenizer_kinds.py).

    python3 compare_tokenizers.py BUILD TRAINING_TEXT [NAME ...] [--lines 2400]    (pip: tokenizers, sentencepiece)

Runs BUILD/bin/tokenizer_lines; prints a row for each kind, and up to three lines that differ. Exit code 1 if any does.
"""
import argparse
import io
import json
import pathlib
import subprocess
import sys
import tempfile

from make_fixtures import EMOJI, FOREIGN, MARKS, lines as tricky_lines
from tokenizer_kinds import KINDS


def long_runs():
    units = ["a", "ab", " ", "\t", "\n", "1", "!", "-=", "é", "字", "ไทย", "שלום", "ة", "\u0301", "😀", "👩‍👩‍👧‍👦", "\x00", "\x7f", "ﬁ", "각", "the ", "▁", "<s>", "'s"]
    return [unit * n for unit in units for n in (3, 17, 100, 701)] + ["x" + unit * 40 + "y" for unit in units]


def all_lines(count):
    special = long_runs()
    return tricky_lines(max(count - len(special), 1)) + special


def training_lines(path):
    return path.read_text(encoding="utf8").splitlines()[:20000] + (FOREIGN + EMOJI + MARKS) * 20


def charsmap(lines, **rules):
    """The rules of nmt_nfkc, or others, as sentencepiece compiles them into each model it trains."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines[:2000]), model_writer=model, vocab_size=300, hard_vocab_limit=False,
                                             minloglevel=2, **(rules or {"normalization_rule_name": "nmt_nfkc"}))
    return sentencepiece_model_pb2.ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap


def ours(program, folder, samples):
    (folder / "lines.json").write_text(json.dumps(samples), encoding="utf8")
    subprocess.run([program, folder, folder / "lines.json", folder / "out.json"], check=True)
    return json.loads((folder / "out.json").read_text(encoding="utf8"))


def compare(name, samples, found, expected):
    """expected: [(ids, text)]. Prints the row; the number of lines that differ."""
    wrong = [n for n, (ids, text) in enumerate(expected) if found["ids"][n] != ids or found["decoded"][n] != text]
    ids = sum(found["ids"][n] == ids for n, (ids, _) in enumerate(expected))
    print(f"{name:24} {len(samples)} lines, ids equal {ids}, wrong {len(wrong)}", flush=True)
    for n in wrong[:3]:
        print(f"  {samples[n][:80]!r}\n    ours   {found['ids'][n][:24]} {found['decoded'][n][:80]!r}\n"
              f"    theirs {expected[n][0][:24]} {expected[n][1][:80]!r}")
    return len(wrong)


def arguments(text):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--lines", type=int, default=2400)
    return parser.parse_args()


def main():
    options = arguments(__doc__)
    program, training, samples = options.build / "bin/tokenizer_lines", training_lines(options.text), all_lines(options.lines)
    rules, wrong = charsmap(training), 0
    for name in options.names or KINDS:
        tokenizer = KINDS[name](training, rules)
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            state = json.loads(tokenizer.to_str())
            if name == "dropout_is_ignored":
                state["model"]["dropout"] = 0.5
            (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf8")
            encoded = [tokenizer.encode(line).ids for line in samples]
            wrong += compare(name, samples, ours(program, folder, samples), [(ids, tokenizer.decode(ids)) for ids in encoded])
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
