# SPDX-License-Identifier: Apache-2.0
"""Chat templates of real models: what bin/chat_lines makes of them against Jinja itself.

    python3 compare_chats.py build/bin/chat_lines TEMPLATE_OR_FOLDER...        (pip: jinja2)

Takes .jinja files, and tokenizer_config.json and chat_template.json with a chat_template; of folders all of them. Prints
one line for each that is not the same text, or is refused by one of the two. Exit code 1 if a text differs.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import make_jinja_fixtures as golden

MORE = [
    {"messages": [{"role": "system", "content": "Sys"}, {"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo\n"}, {"role": "user", "content": " Bye "}],
     "tools": golden.TOOLS},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [{
        "id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "n": [1]}}}]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "3"}], "tools": golden.TOOLS},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part"}]}]},
]


def templates(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix == ".jinja" or p.name in ("tokenizer_config.json", "chat_template.json"))
    for file in files:
        if file.suffix == ".jinja":
            yield str(file), file.read_text()
            continue
        found = json.loads(file.read_text()).get("chat_template")
        for name, template in ([("", found)] if isinstance(found, str) else [(t["name"], t["template"]) for t in found or []]):
            yield f"{file} {name}", template


def main():
    binary, *paths = sys.argv[1:]
    asked, expected = [], []
    for path in paths:
        for name, template in templates(pathlib.Path(path)):
            for conversation in golden.CONVERSATIONS + MORE:
                for prompt in (False, True):
                    variables = {"messages": conversation["messages"], "tools": conversation.get("tools"), "documents": None,
                                 "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
                    asked.append({"name": name, "template": template, "variables": variables})
                    expected.append(golden.outcome(template, variables))
    with tempfile.TemporaryDirectory() as folder:
        given, out = pathlib.Path(folder) / "in.json", pathlib.Path(folder) / "out.json"
        given.write_text(json.dumps(asked))
        subprocess.run([binary, given, out], check=True)
        ours = json.loads(out.read_text())
    same = refused = wrong = both = 0
    seen = set()
    for one, theirs, mine in zip(asked, expected, ours):
        if "text" in mine and theirs == mine:
            same += 1
        elif "error" in mine and "error" in theirs:
            both += 1
        elif "error" in mine:
            refused += 1
            line = f"refused {one['name']}: {mine['error']}"
            if line not in seen:
                print(line)
            seen.add(line)
        else:
            wrong += 1
            print(f"WRONG {one['name']}: {mine['text']!r}\n   expected {theirs.get('text', 'a refusal')!r}"[:2000])
    print(f"{same} the same, {both} refused by both, {refused} refused by us alone, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
