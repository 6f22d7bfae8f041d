# SPDX-License-Identifier: Apache-2.0
"""The code of tools/pages/python.md runs, and prints what the page shows."""

import re
import shutil
import subprocess
import sys

from conftest import DEMO, ROOT


def test_the_pages_code(tmp_path):
    for name in ("kjv-byte-1.7M", "kjv_calib.txt", "kjv_heldout_16k.txt"):
        copy = shutil.copytree if (DEMO / name).is_dir() else shutil.copy
        copy(DEMO / name, tmp_path / name)
    done = subprocess.run([sys.executable, ROOT / "tests" / "python" / "recipes.py", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (ROOT / "tools" / "pages" / "python.md").read_text()
    shown = "".join(re.findall(r"^```text\n(.*?)^```$", page, re.M | re.S))
    printed = [line for line in done.stdout.splitlines() if line.strip() and "[real_accelerator.py" not in line]  # DeepSpeed's, of its import
    assert shown.splitlines() == printed
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    code = (ROOT / "tests" / "python" / "recipes.py").read_text()
    assert len(blocks) >= 10 and [block for block in blocks if block not in code and block not in (ROOT / "tools" / "examples" / "quantize_module.py").read_text()] == []
