# SPDX-License-Identifier: Apache-2.0
"""wheels.py TREE STATIC LIBTORCH OUT: the two wheels that are handed out, for tools/release. Needs patchelf, and no package.

  fp8_toolkit-VERSION-py3-none-manylinux_2_35_x86_64.whl    this folder's package, with the libraries and the program of TREE
      and the system's libraries that TREE brings, without those of LIBTORCH: they are torch's
  fp8_cli-VERSION-py3-none-manylinux2014_x86_64.whl         the program STATIC as the command fp8-cli

The tags are what tests/tools/release/check_elf has found to be so of TREE and of STATIC."""

import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile

HERE = pathlib.Path(__file__).parent
PROJECT = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
PROJECT["text"] = (HERE / PROJECT["readme"]).read_text()
CLI = {**PROJECT, "name": "fp8-cli", "description": "fp8 quantization of checkpoints: one static program, without torch", "scripts": {},
       "entry-points": {}, "optional-dependencies": {}, "text": """# fp8-cli

The command `fp8-cli` is the static program of fp8, for any Linux on x86-64, without torch: `quantize` (`--dynamic`,
`--weights-only` or from measurements), `convert`, `inspect`, `config`, `measurements` and `doctor`. It writes the bytes of
the full program, which the package fp8-toolkit has.

    fp8-cli quantize MODEL --dynamic -o OUT
"""}


def metadata(project: dict, licenses: list[str]) -> str:
    """As scikit-build-core writes it of pyproject.toml."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {project['version']}", f"Summary: {project['description']}",
             f"License-Expression: {project['license']}", *(f"License-File: {name}" for name in licenses),
             *(f"Classifier: {name}" for name in project["classifiers"]), f"Requires-Python: {project['requires-python']}"]
    for extra, needed in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {one}; extra == "{extra}"' for one in needed)]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", project["text"]])


def entry_points(project: dict) -> str:
    groups = {**project["entry-points"], "console_scripts": project["scripts"]}
    parts = {group: "".join(f"{name} = {what}\n" for name, what in points.items()) for group, points in groups.items()}
    return "\n".join(f"[{group}]\n{part}" for group, part in parts.items() if part)


def write(out: pathlib.Path, project: dict, tag: str, files: dict[str, pathlib.Path],
          licenses: dict[str, pathlib.Path]) -> pathlib.Path:
    """files, licenses: where they come from, by their name in the wheel and in its folder of licences."""
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    info = f"{stem}.dist-info"
    texts = {f"{info}/METADATA": metadata(project, list(licenses)), f"{info}/entry_points.txt": entry_points(project),
             f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: fp8\nRoot-Is-Purelib: false\nTag: {tag}\n"}
    content = {name: (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for name, path in sorted(files.items())}
    content |= {f"{info}/licenses/{name}": (path.read_bytes(), False) for name, path in sorted(licenses.items())}
    content |= {name: (text.encode(), False) for name, text in texts.items() if text}
    record = "".join(f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
                     for name, (data, _) in content.items())
    content[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), False)
    wheel = out / f"{stem}-{tag}.whl"
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), 315532800))[:6]  # zip's first year is 1980
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, runs) in content.items():
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


def binaries(tree: pathlib.Path, libtorch: pathlib.Path, work: pathlib.Path) -> dict[str, pathlib.Path]:
    """Copies of TREE's program and libraries that find each other, and torch, where pip puts them."""
    theirs = {file.name for folder in (libtorch / "lib", libtorch.parent / "torch.libs") if folder.is_dir() for file in folder.iterdir()}
    names = {f"fp8/lib/{file.name}": file for pattern in ("libfp8_*.so.0", "libfp8_*program.so", "libfp8_commands.so")
             for file in (tree / "lib").glob(pattern)}
    system = {f"fp8/lib/fp8/{file.name}": file for file in (tree / "lib" / "fp8").glob("*.so*") if file.name not in theirs}
    files = {"fp8/bin/fp8": tree / "bin" / "fp8", **names, **system}
    for name, path in files.items():
        copy = work / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        if name in names:
            subprocess.run(["patchelf", "--set-rpath", "$ORIGIN:$ORIGIN/fp8:$ORIGIN/../../torch/lib", str(copy)], check=True)
    return {name: work / name for name in files}


def main(tree: pathlib.Path, static: pathlib.Path, libtorch: pathlib.Path, out: pathlib.Path) -> None:
    own = {name: HERE / name for name in PROJECT["license-files"]}
    of_system = {f"bundled/{file.name}": file for file in (tree / "share/doc/fp8/licenses").glob("*") if file.name != "libtorch"}
    package = {str(file.relative_to(HERE)): file for file in (HERE / "fp8").rglob("*") if file.suffix in (".py", ".typed", ".json")}
    with tempfile.TemporaryDirectory() as work:
        files = {**package, **binaries(tree, libtorch, pathlib.Path(work))}
        print(write(out, PROJECT, "py3-none-manylinux_2_35_x86_64", files, {**own, **of_system}))
    script = f"fp8_cli-{CLI['version']}.data/scripts/fp8-cli"
    print(write(out, CLI, "py3-none-manylinux2014_x86_64", {script: static}, own))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit("usage: wheels.py TREE STATIC LIBTORCH OUT")
    main(*(pathlib.Path(word) for word in sys.argv[1:]))
