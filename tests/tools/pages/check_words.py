#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sentences and words of the pages: how long sentences are, and that the first use of a word of the field in a page is a
link to the glossary; and the lines with which README.md starts.

  check_words.py --start README.md      prints them, as tests/tools/release/newcomer runs them
"""

import pathlib
import re
import sys

LONGEST = 30  # words: nine of ten sentences of README.md have no more
GLOSSARY = "glossary.md"
# Words that a reader who comes from elsewhere may not know; an ending may follow them.
WORDS = ("amax", "scale_inv", "SQNR", "KL", "dialect", "ocp", "E4M3", "E5M2", "MXFP8", "static scale", "dynamic scale",
         "calibration", "router", "tower", "INC", "HYBRID", "rank")
START_LINES, START_COLUMNS = 5, 80
ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9`\"*\[(]|fp8|transformers|vLLM|torch)")
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
CELL_WORDS = 8  # a shorter cell of a table is no sentence


def blocks(text):
    """[(number of its first line, text)] of paragraphs and items of lists; not of code, headings, tables, comments."""
    found, lines, first, fence = [], [], 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("```"):
            fence = not fence
        other = fence or not line.strip() or re.match(r"```|#|\||<!--|\[[^]]+\]: |!\[", line)
        if lines and (other or ITEM.match(line)):
            found.append((first, " ".join(lines)))
            lines = []
        if not other:
            first = first if lines else number
            lines.append(ITEM.sub("", line).strip())
    return found


def sentences(text):
    """Sentences of paragraphs, lists and longer cells of tables."""
    cells = [cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
    parts = [part for _, part in blocks(text)] + [cell for cell in cells if len(cell.split()) > CELL_WORDS]
    return [sentence for part in parts for sentence in ENDS.split(part)]


def words(sentence):
    """Their number; a link counts as its text, a word in backticks as a word."""
    return len(re.sub(r"!?\[([^]]*)\](\([^)]*\)|\[[^]]*\])?", r"\1", sentence).split())


def ninth_of_ten(text):
    """The number of words that nine of ten sentences do not exceed."""
    counts = sorted(words(sentence) for sentence in sentences(text))
    return counts[int(0.9 * (len(counts) - 1))] if counts else 0


def length_problems(readme):
    found = ninth_of_ten(readme)
    if found > LONGEST:
        longest = max(sentences(readme), key=words)
        yield 1, f"one sentence of ten has {found} words or more, allowed: {LONGEST}; the longest: {longest[:100]} ..."


def start_lines(readme):
    """The commands under "Start": from the download to a server."""
    block = re.search(r"^## Start\n.*?^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return block[1].splitlines() if block else []


def start_problems(readme):
    lines = start_lines(readme)
    if not 0 < len(lines) <= START_LINES:
        yield 1, f"found {len(lines)} commands under Start, allowed: 1 to {START_LINES}"
    for line in lines:
        if len(line) > START_COLUMNS:
            yield 1, f"a command under Start has {len(line)} columns, allowed: {START_COLUMNS}: {line}"


def first_use(text, word):
    """(line, whether it is a link to the glossary) of the first use in prose; None without one."""
    pattern = re.compile(rf"(?<![\w/.-]){re.escape(word)}(?:s|es)?(?![\w/-])")
    targets = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", text, re.MULTILINE))
    for number, block in blocks(text):
        plain = re.sub(r"`[^`]*`", lambda code: "`" * len(code[0]), block)
        links = [(link.start(), link.end(), link[2] or targets.get(link[3] or link[1], "")) for link in
                 re.finditer(r"\[([^]]*)\](?:\(([^)]*)\)|\[([^]]*)\])?", plain)]
        # A link to another page is not a use: that page explains the word.
        for use in pattern.finditer(plain):
            around = [target for begin, end, target in links if begin <= use.start() < end]
            if not around or around[0] == "" or GLOSSARY in around[0]:
                return number, bool(around) and GLOSSARY in around[0]
    return None


def glossary_problems(page, text):
    """Of README.md and the pages."""
    if page.name == GLOSSARY or not (page.parent.name == "pages" or page.name == "README.md" and (page.parent / "tools").is_dir()):
        return
    for word in WORDS:
        use = first_use(text, word)
        if use is not None and not use[1]:
            yield use[0], f"'{word}' stands here first: link it to {GLOSSARY}"


def self_test(found):
    text = "# One\nA b c2. `D e` f\ng.\n- Two [words](x.md).\n\n| a | one two three four five six seven eight nine |\n"
    if sorted(map(words, sentences(text))) != [2, 3, 4, 9]:
        found.append(f"check_words: found {sentences(text)}")
    uses = [("an amax, [amax](glossary.md)", (1, False)), ("the [amaxes][amax].\n\n[amax]: glossary.md#scales", (1, True)),
            ("`amax` and [an amax](forms.md)", None), ("damax", None)]
    found += [f"check_words: '{text}': found {first_use(text, 'amax')}" for text, wanted in uses if first_use(text, "amax") != wanted]


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--start":
        sys.exit(__doc__)
    print("\n".join(start_lines(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8"))))
