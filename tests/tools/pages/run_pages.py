#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what README.md and tools/pages show, block by block, and compares what is printed.

  run_pages.py --binary build/bin/fp8 [PAGE...]      these pages (default: README.md and all of tools/pages)
  --all                                              the blocks marked slow too
  --update                                           writes what was printed into the pages, where it differs

Each page has an empty folder of its own, and a home in which `fp8` is this repository, so that the page's first lines
can take the demo model from there. Programs that need more than one machine or an accelerator are stand-ins
(stand_ins.py). Nothing but Python's standard library is needed. A fenced block is

  console     lines that begin with "$ " are commands, what follows each is what it prints; nothing: not compared
  sh          commands whose output the page does not show
  any other   the text of a file, by one of the first two comments below

and comments on lines of their own before it, which no reader of the page sees, say more:

  <!-- file NAME -->          the block's text is written to NAME
  <!-- from PATH -->          the block's text stands in PATH of the repository, which another test compiles and runs
  <!-- exit N -->             the last command's exit code (default 0)
  <!-- slow -->               only with --all
  <!-- not run: WHY -->
  <!-- built: NAME... -->     what blocks of this page build that are not run, because another test builds it

Printed text is compared line by line, without regard to spaces: a line "..." stands for any lines, " ..." at the end of
a line for its rest. Whole numbers must be equal; numbers with a point may be 10 % off (instruction sets and thread
counts sum in other orders); times, speeds and what stands after "seconds", "tokens per second" and "MB resident" are
free."""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import stand_ins  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
COMMENT = re.compile(r"<!-- (built|file|from|exit|slow|not run)(?::? (.*))? -->$")
SECONDS = 300  # of one command


class Block:
    """A fenced block: its language, its lines, where they stand, and what the comments before it say."""

    def __init__(self, language, first_line, said):
        self.language, self.first_line, self.lines = language, first_line, []
        self.said = dict(said)

    def text(self):
        return "".join(line + "\n" for line in self.lines)


def parse(text):
    """(blocks of a page, names of what it builds elsewhere)"""
    blocks, names, said, block, fence = [], [], [], None, None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"(`{3,})\s*(\S*)$", line)
        if block is not None and mark and mark[1] == fence and not mark[2]:
            blocks.append(block)
            block, said = None, []
        elif block is not None:
            block.lines.append(line)
        elif mark:
            fence = mark[1]
            block = Block(mark[2], number + 1, said)
        elif found := COMMENT.match(line):
            if found[1] == "built":
                names += found[2].split()
            else:
                said.append((found[1], found[2] or ""))
        elif line.strip():
            said = []
    return blocks, names


def commands_of(block):
    """[(command, lines that it prints, number of its first output line in the block)]"""
    if block.language == "sh":
        return [(block.text(), [], 0)]
    commands, more = [], False
    for number, line in enumerate(block.lines):
        if more:
            commands[-1][0] += "\n" + line
        elif line.startswith("$ "):
            commands.append([line[2:], [], number + 1])
        elif commands:
            commands[-1][1].append(line)
        else:
            raise ValueError(f"line {block.first_line + number}: a console block begins with a command, '$ ...'")
        command_goes_on = (more or line.startswith("$ ")) and line.endswith("\\")
        if more or command_goes_on:
            commands[-1][2] = number + 1
        more = command_goes_on
    return [tuple(command) for command in commands]


NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
UNIT = re.compile(r"\s*(?:ms|us|ns|s|min|h|seconds|minutes|tokens/s|[kMG]B/s|GMAC/s|x)\b")
OF_LONG_RUNS = re.compile(r"fp8: (note: .*\breckoned (at|from)\b|train: step \d+ of \d+, )")
FREE = re.compile(r"seconds|per second|resident|peak|elapsed|took")


def same_number(a, b):
    if a == b:
        return True
    if not re.search(r"[.e]", a + b):
        return False  # whole numbers
    x, y = float(a.replace(",", "")), float(b.replace(",", ""))
    return abs(x - y) <= 0.1 * max(abs(x), abs(y)) or max(abs(x), abs(y)) <= 1e-4


def same_line(shown, printed):
    shown, printed = " ".join(shown.split()), " ".join(printed.split())
    if shown.endswith(" ..."):
        words = len(shown[:-4].split())
        shown, printed = shown[:-4], " ".join(printed.split()[:words])
    if shown == printed:
        return True
    ours, theirs = NUMBER.split(shown), NUMBER.split(printed)
    if ours != theirs:
        return False
    if FREE.search(shown):
        return True
    free = [bool(UNIT.match(after)) for after in ours[1:]]
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), free)
    return all(is_free or same_number(a, b) for a, b, is_free in pairs)


def difference(shown, printed):
    """None if `printed` is what the page shows, else the first line that is not."""
    if not shown:
        return None
    shown = [line for line in shown if line.strip()]
    printed = [line for line in printed if line.strip()]
    if "..." not in shown:
        for a, b in zip(shown, printed):
            if not same_line(a, b):
                return f"shown:   {a}\n    printed: {b}"
        if len(shown) != len(printed):
            longer = (shown if len(shown) > len(printed) else printed)[min(len(shown), len(printed))]
            return f"{len(shown)} lines are shown, {len(printed)} are printed; the first that is too many: {longer}"
        return None
    at, skipping = 0, False
    for line in shown:
        if line == "...":
            skipping = True
            continue
        found = next((i for i in range(at, len(printed)) if same_line(line, printed[i])), None)
        if found is None or (not skipping and found != at):
            here = printed[at] if at < len(printed) else "(nothing more)"
            return f"shown:   {line}\n    printed: {here}"
        at, skipping = found + 1, False
    return None if skipping or at == len(printed) else f"printed, but not shown: {printed[at]}"


class Page:
    """Runs one page; `problems` is what was found, `updates` {line of the page: (number of lines, new lines)}."""

    def __init__(self, path, shared, everything):
        self.path, self.shared, self.everything = path, shared, everything
        self.problems, self.updates, self.ran, self.skipped, self.seconds, self.times = [], {}, 0, 0, 0.0, []

    def run(self):
        begin = time.monotonic()
        blocks, names = parse(self.path.read_text())
        with tempfile.TemporaryDirectory(prefix="fp8_page_") as folder:
            self.folder = pathlib.Path(folder)
            for name in names:
                if not self.shared.give(name, self.folder):
                    print(f"{self.path.name}: without {name}: what needs it is skipped")
            for block in blocks:
                try:
                    self.run_block(block)
                except ValueError as error:
                    self.problem(block, str(error))
                if self.problems:
                    break  # the next block would need what this one makes
        self.seconds = time.monotonic() - begin
        return self

    def problem(self, block, text):
        self.problems.append(f"{self.path.relative_to(ROOT)}:{block.first_line}: {text}")

    def run_block(self, block):
        said = block.said
        if "not run" in said:
            if not said["not run"]:
                raise ValueError("not run, without a reason")
            self.skipped += 1
            return
        if "from" in said:
            source = ROOT / said["from"]
            if not source.exists() or block.text() not in source.read_text():
                raise ValueError(f"this text is not in {said['from']}")
        if "file" in said:
            target = self.folder / said["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text())
        if block.language not in ("console", "sh"):
            if not {"file", "from"} & said.keys():
                raise ValueError(f"a block of '{block.language}' that nothing runs: console, sh, or a comment before it (see {pathlib.Path(__file__).name})")
            return
        needed = [name for name in self.shared.missing if any(name in line for line in block.lines)]
        if needed or ("slow" in said and not self.everything):
            self.skipped += 1
            return
        commands = commands_of(block)
        for number, (command, shown, at) in enumerate(commands):
            last = number + 1 == len(commands)
            printed = self.shell(block, command, int(said.get("exit") or 0) if last else 0)
            self.ran += 1
            if printed is None:
                return
            # What a command says only if it takes long, as on a busy machine, unless it is what the page shows.
            if not any(OF_LONG_RUNS.match(line) for line in shown):
                printed = [line for line in printed if not OF_LONG_RUNS.match(line)]
            different = difference(shown, printed)
            if different:
                self.problem(block, f"{command.splitlines()[0]}\n    {different}")
                self.updates[block.first_line + at] = (len(shown), printed)

    def shell(self, block, command, code):
        """Lines that a command prints on both streams; None after an exit code that is not the page's."""
        begin = time.monotonic()
        try:
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=self.folder, env=self.shared.environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                                  timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            self.problem(block, f"{command.strip()}\n    has not ended after {SECONDS} s")
            return None
        self.times.append((time.monotonic() - begin, command.strip().splitlines()[0]))
        if done.returncode != code:
            self.problem(block, f"{command.strip()}\n    ended with {done.returncode}, expected {code}:\n{done.stdout[-2000:]}")
            return None
        return done.stdout.splitlines()


def update(page):
    """Writes what was printed in place of what was shown; from the last line to the first, so that numbers stay right."""
    lines = page.path.read_text().splitlines()
    for first, (count, printed) in sorted(page.updates.items(), reverse=True):
        lines[first - 1:first - 1 + count] = [line.rstrip() for line in printed]
    page.path.write_text("\n".join(lines) + "\n")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the tool: build/bin/fp8")
    parser.add_argument("--built", type=pathlib.Path, help="where projects were built against an installed tool, by their folders here")
    parser.add_argument("--all", action="store_true", help="slow blocks too")
    parser.add_argument("--update", action="store_true", help="write what was printed into the pages")
    parser.add_argument("--times", type=int, default=0, help="print so many of the slowest commands")
    parser.add_argument("--subset", action="store_true", help="ignored: what --all leaves out is left out without it")
    parser.add_argument("--jobs", type=int, default=2, help="pages at once (default 2)")
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    options = parser.parse_args(arguments)
    paths = [path.resolve() for path in options.pages] or [ROOT / "README.md", *sorted((ROOT / "tools/pages").glob("*.md"))]
    with tempfile.TemporaryDirectory(prefix="fp8_pages_") as work:
        shared = stand_ins.StandIns(pathlib.Path(options.binary).resolve(), ROOT, pathlib.Path(work), options.built)
        # The longest texts first: two at a time end together.
        order = sorted((Page(path, shared, options.all) for path in paths), key=lambda page: -page.path.stat().st_size)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            pages = list(pool.map(Page.run, order))
    for page in sorted(pages, key=lambda page: page.path):
        verdict = "wrong" if page.problems else "right"
        print(f"{verdict} {str(page.path.relative_to(ROOT)):34} {page.ran:3} commands, {page.skipped} blocks not run, {page.seconds:.1f} s")
        for problem in page.problems:
            print("  " + problem)
        if options.update and page.updates:
            update(page)
    if options.times:
        for seconds, command in sorted((entry for page in pages for entry in page.times), reverse=True)[:options.times]:
            print(f"{seconds:6.2f} s  {command}")
    return 1 if any(page.problems for page in pages) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
