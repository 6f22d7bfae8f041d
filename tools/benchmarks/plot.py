# SPDX-License-Identifier: Apache-2.0
"""The plot of sweep.py's lines: a row for each quantity, a column for what it is plotted against.

    python plot.py FILE.jsonl      writes FILE.svg

Both axes are logarithmic: what is twice as fast stands as far above at any size.
"""

import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 300, 190  # of a panel's inside
LEFT, TOP, GAP_X, GAP_Y = 62, 52, 70, 62
COLORS = {"fp8": "#3b82c4", "bf16": "#d0602e", "llama.cpp Q8_0": "#2f9e63", "llama.cpp BF16": "#9a5fc0"}
COLUMNS = {"parameters": "size", "context": "context", "threads": "threads"}
ROWS = {"decode": ("decode, tokens a second", 1), "prefill": ("128 tokens at once, tokens a second", 1),
        "peak_rss": ("resident at most, GB", 1e-9)}
PARAMETERS = {"0.1B": 0.125e9, "1.1B": 1.1e9, "3B": 3.4e9}


def series(lines, column, quantity):
    """{who: [(x, y)]}"""
    found = {}
    for line in lines:
        if line.get("case") == column and quantity in line:
            x = line[COLUMNS[column]]
            found.setdefault(line["who"], []).append((PARAMETERS.get(x, x), line[quantity] * ROWS[quantity][1]))
    return {who: sorted(points) for who, points in found.items() if who in COLORS}


def ticks(low, high):
    """1, 2 and 5 times powers of ten within the range, or powers of ten alone where those are many."""
    steps = [m * 10.0**e for e in range(-3, 12) for m in (1, 2, 5)]
    inside = [t for t in steps if low <= t <= high]
    return inside if len(inside) <= 6 else [t for t in inside if f"{t:e}".startswith("1")]


def number(value):
    for factor, unit in ((1e9, "G"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def x_label(column, x):
    if column == "parameters":
        return next(name for name, value in PARAMETERS.items() if value == x)
    return number(x / 1024) + "k" if x >= 1024 else number(x)


def panel(lines, column, quantity, left, top):
    curves = series(lines, column, quantity)
    points = [point for curve in curves.values() for point in curve]
    xs, ys = sorted({x for x, _ in points}), [y for _, y in points]
    if len(xs) < 2:
        return []
    low, high = min(ys) / 1.3, max(ys) * 1.3
    span = math.log(max(xs) / min(xs))

    def px(x):
        return left + 14 + (WIDTH - 28) * math.log(x / min(xs)) / span

    def py(y):
        return top + HEIGHT * (1 - math.log(y / low) / math.log(high / low))

    out = [f'<text x="{left}" y="{top - 10}" fill="#606060">{ROWS[quantity][0]}</text>']
    for y in ticks(low, high):
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{py(y):.1f}" y2="{py(y):.1f}" stroke="#8884"/>'
                   f'<text x="{left - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{number(y)}</text>')
    for x in xs:
        out.append(f'<line x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{top + HEIGHT}" y2="{top + HEIGHT + 4}" stroke="#8888"/>'
                   f'<text x="{px(x):.1f}" y="{top + HEIGHT + 18}" text-anchor="middle">{x_label(column, x)}</text>')
    for who, curve in curves.items():
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in curve)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[who]}" stroke-width="1.8"/>')
        out += [f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="2.6" fill="{COLORS[who]}"/>' for x, y in curve]
    return out


def write(lines, path):
    columns = [c for c in COLUMNS if any(line.get("case") == c for line in lines)]
    rows = [q for q in ROWS if any(q in line for line in lines)]
    width, height = LEFT + len(columns) * (WIDTH + GAP_X) - GAP_X + 20, TOP + len(rows) * (HEIGHT + GAP_Y)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="system-ui, sans-serif" font-size="12" fill="#808080">']
    for i, (who, color) in enumerate(COLORS.items()):
        if any(line.get("who") == who for line in lines):
            out.append(f'<circle cx="{LEFT + 6 + 150 * i}" cy="14" r="4" fill="{color}"/><text x="{LEFT + 16 + 150 * i}" y="18">{who}</text>')
    for r, quantity in enumerate(rows):
        for c, column in enumerate(columns):
            left, top = LEFT + c * (WIDTH + GAP_X), TOP + r * (HEIGHT + GAP_Y)
            found = panel(lines, column, quantity, left, top)
            if found:
                out += [*found, f'<text x="{left + WIDTH}" y="{top - 10}" text-anchor="end">against {column}</text>']
    path.write_text("\n".join([*out, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    source = pathlib.Path(sys.argv[1])
    write([json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()], source.with_suffix(".svg"))
