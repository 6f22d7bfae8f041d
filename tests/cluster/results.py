# SPDX-License-Identifier: Apache-2.0
"""The table of what was found, a Markdown file that is written anew by each run and loses nothing: rows of parts that
did not run stay, each with its day, and so do the lines that somebody wrote between the head and the rows."""

import datetime
import os
import re

TITLE = "# Several machines, on one"
HEAD = "| part | what | found | right | day |"
ROW = re.compile(r"\| (\w+) \| (.*) \| (.*) \| (yes|\*\*no\*\*) \| ([\d-]{10}) \|$")


def cpu_name():
    return next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")


def read(text):
    """(lines of the head behind the title's, rows as they stand by part) of a table."""
    lines = text.splitlines()
    head = lines[lines.index(TITLE) + 1:lines.index(HEAD)] if TITLE in lines and HEAD in lines else []
    rows = {}
    for line in lines:
        if found := ROW.match(line):
            rows.setdefault(found[1], []).append(line)
    return "\n".join(head).strip().splitlines(), rows


def text_of(old, rows, parts, machine, day):
    """rows: {part: [(what, found, right)]} of this run. old: the table so far, or ""."""
    head, kept = read(old)
    head = head or [f"`sudo ./tools/test --cluster`, {os.cpu_count()} cores ({machine or cpu_name()})."]
    for part, found in rows.items():
        kept[part] = [f"| {part} | {what} | {text.replace('|', '/')} | {'yes' if right else '**no**'} | {day} |" for what, text, right in found]
    lines = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", TITLE, "", *head, "", HEAD, "|---|---|---|---|---|"]
    return "\n".join(lines + [line for part in parts for line in kept.get(part, [])]) + "\n"


def write(path, rows, parts, machine):
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(text_of(old, rows, parts, machine, datetime.date.today().isoformat()), encoding="utf-8")
