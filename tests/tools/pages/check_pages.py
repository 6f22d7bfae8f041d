#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What can be checked of the repository's Markdown without running it:

  check_pages.py [--binary build/bin/fp8]

  - relative links and their anchors, and files of the tree that are named in backticks, are there;
  - each option that a command of fp8's is given is one that it has;
  - a page begins with an example; nothing of it hides in comments but what run_pages.py knows;
  - README.md has at most 150 lines, the README of a folder 80; lines end at column 120 (tables may be longer);
  - words, by codespell where this Python has it or pip can fetch it (words.txt: what it takes for mistakes);
  - sentences of README.md are short, its first lines few and narrow; a page links the field's words to the glossary
    (check_words.py);
  - numbers are those of tools/benchmarks/results (check_numbers.py);
  - run_pages.py and the stand-ins find mistakes."""

import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE / "stand_ins")]
sys.dont_write_bytecode = True
import check_numbers  # noqa: E402
import check_words  # noqa: E402
import run_pages  # noqa: E402
import vllm  # noqa: E402

CODESPELL = "2.4.1"
README_LINES, FOLDER_LINES, COLUMNS = 150, 80, 120
EXAMPLE = 14  # a page's first block begins in so many lines
COMMANDS = {"measure", "quantize", "convert", "evaluate", "generate", "embed", "train", "run", "inspect", "config", "measurements", "doctor", "completion"}
AS_LIGHTNING = {"--ckpt_path"}  # options of run files, spelled as LightningCLI's
ACTIONS = {"measurements": ("merge", "unify", "expand", "postprocess", "diff", "show")}


def pages():
    """Every Markdown file of the tree."""
    top = ["README.md", "configs", "measure", "quant", "recipes", "runtime", "tests", "tools", "transformer_engine"]
    found = [ROOT / top[0]]
    for folder in top[1:]:
        found += sorted((ROOT / folder).rglob("*.md"))
    return found


def prose_of(text):
    """The text without fenced blocks, line for line."""
    lines, fence = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fence = not fence
        lines.append("" if fence or line.startswith("```") else line)
    return lines


def anchors_of(text):
    """GitHub's names of the headings of a page."""
    anchors = []
    for line in prose_of(text):
        if heading := re.match(r"#+ (.*)", line):
            name = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            anchors.append(re.sub(r"[^\w\- ]", "", name).strip().replace(" ", "-"))
    return anchors


def links(page, text):
    lines = prose_of(text)
    named = {line.partition("]: ")[0][1:] for line in lines if re.match(r"\[[^]]+\]: ", line)}
    for number, line in enumerate(lines, 1):
        line = re.sub(r"`[^`]*`", "", line)
        for name in re.findall(r"\]\[([a-zA-Z][\w ]*)\]", line):
            if name not in named:
                yield number, f"links to [{name}], which the page does not define"
        for target in re.findall(r"\]\(([^)\s]+)\)|^\[[^]]+\]: (\S+)$", line):
            target = "".join(target)
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            if not there.exists():
                yield number, f"links to {target}, which is not there"
            elif anchor and anchor not in anchors_of(there.read_text()):
                yield number, f"links to {target}: no such heading"


def files(page, text):
    """Names in backticks that begin with a folder of the tree."""
    tops = "configs|measure|quant|recipes|runtime|tests|tools|transformer_engine"
    for number, line in enumerate(prose_of(text), 1):
        for name in re.findall(rf"`(?:\./)?(?:fp8/)?((?:{tops})/[A-Za-z0-9_./*{{}},-]+)[` ]", line):
            for each in expand(name):
                if not list(ROOT.glob(each)) and not list(page.parent.glob(each)):
                    yield number, f"names {each}, which is not there"


def expand(name):
    """a/{b,c}.h: a/b.h and a/c.h"""
    braces = re.search(r"\{([^}]*)\}", name)
    if not braces:
        return [name.rstrip("./")]
    return [each for part in braces[1].split(",") for each in expand(name[:braces.start()] + part + name[braces.end():])]


class Options:
    """The options of each command, asked once."""

    def __init__(self, binary):
        self.binary, self.known = binary, {}

    def of(self, command, action):
        words = [command, action] if action in ACTIONS.get(command, ()) else [command]
        key = tuple(words)
        if key not in self.known:
            shown = subprocess.run([self.binary, *words, "--help-all"], capture_output=True, text=True, check=False)
            if shown.returncode:
                shown = subprocess.run([self.binary, *words, "--help"], capture_output=True, text=True, check=True)
            self.known[key] = set(re.findall(r"--[a-z][a-z0-9_-]*", shown.stdout)) | {"--help", "--help-all", "--version"} | (AS_LIGHTNING if command == "train" else set())
        return self.known[key]


def options(text, known):
    """Options of fp8's commands, in blocks and in prose."""
    joined = re.sub(r"\\\n", lambda _: "  ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        for command, rest in re.findall(r"\bfp8 ([a-z]+)((?: [^`#|&;]*)?)", line):
            if command not in COMMANDS:
                continue
            rest = rest.split(" fp8 ")[0]
            action = (rest.split() or [""])[0]
            for option in re.findall(r"(?<=\s)(--[a-z][a-z0-9_-]*)", rest):
                if option not in known.of(command, action):
                    yield number, f"fp8 {command} has no option {option}"


def shape(page, text):
    lines = text.splitlines()
    allowed = README_LINES if page.parent == ROOT else FOLDER_LINES
    if page.name == "README.md" and len(lines) > allowed:
        yield len(lines), f"{len(lines)} lines, allowed: {allowed}"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and not line.startswith("|"):
            yield number, f"{len(line)} columns, allowed: {COLUMNS}"


def example(page, text):
    """Of a page."""
    if page.parent.name != "pages":
        return
    lines = text.splitlines()
    if not any(line.startswith("```") for line in lines[:EXAMPLE]):
        yield 1, f"no example in the first {EXAMPLE} lines"
    for number, line in enumerate(lines, 1):
        if line.startswith("<!--") and not run_pages.COMMENT.match(line) and not re.match(r"<!-- (SPDX-|table: |end of table)", line):
            yield number, f"a comment that no reader sees: {line}"


def codespell():
    """How to call it, or None where it can't be had."""
    if subprocess.run([sys.executable, "-c", "import codespell_lib"], capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", "codespell_lib"], None
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "fp8" / f"codespell-{CODESPELL}"
    if not (cache / "codespell_lib").exists():
        with tempfile.TemporaryDirectory() as folder:
            fetched = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "2", "--no-deps", "--only-binary", ":all:", "--target",
                                      f"{folder}/new", f"codespell=={CODESPELL}"], capture_output=True, text=True, check=False)
            if fetched.returncode:
                return None, None
            cache.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(f"{folder}/new", cache)
    return [sys.executable, "-m", "codespell_lib"], str(cache)


def spelling(found):
    command, path = codespell()
    if command is None:
        print("words are not checked: no codespell, and pip could not fetch it")
        if os.environ.get("CI") == "true":
            found.append("codespell: pip could not fetch it")
        return
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    names = [str(page.relative_to(ROOT)) for page in pages()]
    done = subprocess.run([*command, "--ignore-words", str(HERE / "words.txt"), *names], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found += done.stdout.splitlines()
    if done.returncode and not done.stdout:
        found.append(f"codespell: {done.stderr.strip()}")


def broken_folders(folder):
    """Checkpoints that vLLM would misread, beside what the stand-in has to say."""
    def write(name, tensors, **config):
        (folder / name).mkdir()
        group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}, "input_activations": None}
        quantization = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]} | config
        (folder / name / "config.json").write_text(json.dumps({"quantization_config": quantization}))
        header = json.dumps({key: {"dtype": dtype, "shape": sizes, "data_offsets": [0, 0]} for key, (dtype, sizes) in tensors.items()}).encode()
        (folder / name / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        return vllm.problems_of(folder / name)

    weight, scale = {"a.q_proj.weight": ("F8_E4M3", [4, 2])}, {"a.q_proj.weight_scale": ("F32", [4, 1])}
    return [
        ("right", write("right", weight | scale), None),
        ("no scale", write("no_scale", weight), "a.q_proj.weight_scale"),
        ("two scales", write("two_scales", weight | {"a.q_proj.weight_scale": ("F32", [2])}), "found ('F32', [2])"),
        ("kept", write("kept", weight | scale, ignore=["re:.*q_proj"]), "list of what is not quantized"),
        ("not kept", write("not_kept", weight | scale | {"b.o_proj.weight": ("BF16", [4, 4])}), "b.o_proj"),
        ("half", write("half", weight | scale | {"a.k_proj.weight": ("BF16", [4, 2])}, ignore=["a.k_proj"]), "some are fp8"),
    ]


def self_test(found):
    """The runner's own rules."""
    same = [("seconds 0.09 s", "seconds    3.91 s"), ("KL 2.1e-03", "KL 2.2e-03"), ("9,412 tokens/s", "12 tokens/s"),
            ("tokens per second 1", "tokens per second 9"), ("kept x ...", "kept x because"), ("a  b", "a b")]
    other = [("modules 28", "modules 29"), ("KL 2.1e-03", "KL 4.1e-03"), ("kept x", "kept y"), ("kept x ...", "kept y because")]
    found += [f"run_pages: '{a}' and '{b}' should be the same" for a, b in same if not run_pages.same_line(a, b)]
    found += [f"run_pages: '{a}' and '{b}' should differ" for a, b in other if run_pages.same_line(a, b)]
    if run_pages.difference(["a", "...", "c"], ["a", "b", "b", "c"]) or not run_pages.difference(["a", "...", "c"], ["a", "b", "c", "d"]):
        found.append("run_pages: '...' should stand for any lines, not for the end")
    blocks, names = run_pages.parse("<!-- built: A B -->\n<!-- exit 1 -->\n```console\n$ a \\\n  b\nc\n$ d\n```\ntext\n```sh\ne\n```\n")
    if names != ["A", "B"] or blocks[0].said != {"exit": "1"} or blocks[1].said or run_pages.commands_of(blocks[0]) != [("a \\\n  b", ["c"], 2), ("d", [], 4)]:
        found.append("run_pages: blocks are not parsed as expected")
    with tempfile.TemporaryDirectory() as folder:
        for name, problems, wanted in broken_folders(pathlib.Path(folder)):
            if (wanted is None) != (not problems) or (wanted and not any(wanted in problem for problem in problems)):
                found.append(f"stand_ins/vllm: '{name}': found {problems}, expected {wanted}")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="the tool: build/bin/fp8; without it options are not looked up")
    parser.add_argument("--subset", action="store_true", help="ignored: it is all quick")
    parser.add_argument("--jobs", type=int, default=1, help="ignored")
    asked = parser.parse_args(arguments)
    found, known = [], Options(asked.binary)
    for page in pages():
        text = page.read_text()
        problems = [*links(page, text), *files(page, text), *shape(page, text), *example(page, text), *check_words.glossary_problems(page, text), *check_numbers.table_problems(text), *(options(text, known) if asked.binary else ())]
        found += [f"{page.relative_to(ROOT)}:{number}: {problem}" for number, problem in problems]
    readme = (ROOT / "README.md").read_text()
    found += [f"README.md:{number}: {problem}" for number, problem in (*check_words.length_problems(readme), *check_words.start_problems(readme), *check_numbers.readme_problems(readme))]
    spelling(found)
    self_test(found)
    check_words.self_test(found)
    check_numbers.self_test(found)
    lengths = sorted((check_words.ninth_of_ten(page.read_text()), str(page.relative_to(ROOT))) for page in pages())
    print("words of nine sentences in ten: " + ", ".join(f"{count} {name}" for count, name in reversed(lengths[-5:])) + f"; README.md {check_words.ninth_of_ten(readme)}")
    print("\n".join(found) or f"{len(pages())} pages: links, files, options, words, lines")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
