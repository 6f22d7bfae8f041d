# SPDX-License-Identifier: Apache-2.0
"""Writes nfc_table.cpp from Python's unicodedata: python3 make_nfc_table.py > nfc_table.cpp

Hangul syllables are left out: nfc.cpp has their formula."""
import unicodedata as u

HANGUL = range(0xAC00, 0xD7A4)
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c not in HANGUL]


def rows(entries):
    line = " "
    for entry in entries:
        item = " {" + ",".join(entry) + "},"
        if len(line) + len(item) > 118:
            yield line
            line = " "
        line += item
    yield line


def table(kind, name, entries):
    print(f"\nconst {kind} k{name}Rows[] = {{")
    print("\n".join(rows(entries)))
    print("};")
    print(f"const Table<{kind}> k{name}{{k{name}Rows, std::size(k{name}Rows)}};")


singletons, composed, only_decomposed = [], [], []
for c in ALL:
    parts = u.decomposition(chr(c)).split()
    if not parts or parts[0].startswith("<"):
        continue
    entry = [f"0x{v:X}" for v in (c, *(int(p, 16) for p in parts))]
    if len(parts) == 1:
        singletons.append(entry)
    else:
        whole = u.normalize("NFC", "".join(chr(int(p, 16)) for p in parts)) == chr(c)
        (composed if whole else only_decomposed).append(entry)

classes = []
for c in ALL:
    k = u.combining(chr(c))
    if k and classes and classes[-1][1] == c - 1 and classes[-1][2] == k:
        classes[-1][1] = c
    elif k:
        classes.append([c, c, k])

print("// SPDX-License-Identifier: Apache-2.0")
print(f"// Unicode {u.unidata_version}: canonical decompositions and combining classes. Written by make_nfc_table.py; don't edit.")
print('// clang-format off\n#include <iterator>\n\n#include "fp8/tools/text/nfc.h"\n\nnamespace fp8::text::nfc {')
table("Singleton", "Singletons", singletons)
table("Pair", "Composed", composed)
table("Pair", "OnlyDecomposed", only_decomposed)
table("ClassRange", "Classes", [[f"0x{a:X}", f"0x{b:X}", str(k)] for a, b, k in classes])
print("\n}  // namespace fp8::text::nfc")
