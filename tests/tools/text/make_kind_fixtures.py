# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/kinds.json and fixtures/files.json: tokenizers of all kinds that the families have, kept small, and what
their own packages make of some lines (compare_tokenizers.py and compare_tokenizer_files.py go over thousands).

    python3 make_kind_fixtures.py TRAINING_TEXT [NAME ...]     (pip: tokenizers, transformers, tiktoken,
                                                               sentencepiece, mistral-common)

With names, of kinds or of files, these are made anew and the others stay.


  kinds.json  {"lines": [...], "kinds": {name: {"tokenizer": tokenizer.json, "ids": [...], "decoded": [...]}}}
  files.json  {"kinds": {name: {"files": {file: base64}, "lines": [...], "ids": [...], "decoded": [...]}}}
"""
import base64
import json
import pathlib
import random
import sys
import tempfile

import compare_tokenizer_files
import tokenizer_kinds
from compare_tokenizers import all_lines, charsmap, training_lines
from compare_tokenizer_files import BEHIND_TOKENS
from make_fixtures import OUT, write

# A few rules as nmt_nfkc has them: full width, ligatures, accents in two code points, white space.
RULES = [("ﬁ", "fi"), ("Ａ", "A"), ("e\u0301", "é"), ("\u3000", " "), ("\t", " "), ("\u00a0", " "), ("\u200b", ""), ("①", "1"), ("ｶﾞ", "ガ")]


def rules_file(folder):
    code = lambda text: " ".join(f"{ord(c):X}" for c in text)
    path = pathlib.Path(folder) / "rules.tsv"
    path.write_text("".join(f"{code(a)}\t{code(b)}\n" for a, b in RULES), encoding="utf8")
    return str(path)


def main():
    tokenizer_kinds.VOCAB = 330
    training = [line for line in training_lines(pathlib.Path(sys.argv[1]))[:4000] if line.isascii()] + ["Ä über é 字 ไทย ▁ ✓ 語"] * 9
    samples = [line for line in all_lines(1500) if len(line) < 60]
    lines = ["", *random.Random(9).sample(samples, 40), "e\u0301ﬁﬁ①", "  two  spaces ", "aaaaaaa aaaaaaaa", "a" * 70, "1234567 12:30", "ａＡ\u3000x\tｶﾞ", "\u200b"]
    names = sys.argv[2:]
    stay = {file: json.loads((OUT / file).read_text(encoding="utf8")) if names else {"kinds": {}} for file in ("kinds.json", "files.json")}
    if names:
        lines = stay["kinds.json"]["lines"]
    with tempfile.TemporaryDirectory() as made:
        rules = rules_file(made)
        table, kinds = charsmap(training, normalization_rule_tsv=rules), stay["kinds.json"]["kinds"]
        for name, make in tokenizer_kinds.KINDS.items():
            if names and name not in names:
                continue
            tokenizer = make(training, table)
            ids = [tokenizer.encode(line).ids for line in lines]
            state = json.loads(tokenizer.to_str())
            kinds[name] = {"tokenizer": {k: v for k, v in state.items() if v}, "ids": ids, "decoded": [tokenizer.decode(i) for i in ids]}
        write("kinds.json", {"lines": lines, "kinds": kinds})
        kinds, small = stay["files.json"]["kinds"], {"vocab_size": 200, "normalization_rule_tsv": rules}
        for name, make in compare_tokenizer_files.files(**small).items():
            if names and name not in names:
                continue
            folder = pathlib.Path(made) / name
            folder.mkdir()
            encode, decode, special = make(folder, training)
            kept = [line for line in lines + BEHIND_TOKENS if not any(token in line for token in special or [])]
            ids = [encode(line) for line in kept]
            files = {f.name: base64.b64encode(f.read_bytes()).decode() for f in sorted(folder.iterdir())}
            kinds[name] = {"files": files, "lines": kept, "ids": ids, "decoded": [decode(i) for i in ids]}
        write("files.json", {"kinds": kinds})


if __name__ == "__main__":
    main()
