#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of `fp8 inspect --html` in headless Chromium: check_pages.py --binary build/bin/fp8 --work DIR

Each page (damage, comparison, fp8 alone, measurement, difference, training, trace, a large model, what quantize and
evaluate say of their models), at 400 and 1200 px, light and dark, from file://: nothing is wider than the window, the console stays empty, nothing is fetched, what must
be said is said, colours have a contrast of 4.5 at least, search and sorting work, and paper holds all of it.
Screenshots and PDFs stay in DIR. Without a browser it says so and exits 0. Only evaluate's pages need LibTorch: the
static program makes all others.

The browser is spoken to through --remote-debugging-pipe: JSON with a NUL behind it, on descriptors 3 and 4.
"""
import argparse
import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "tools/demo_data/kjv-byte-1.7M"
TEXT = ROOT / "tools/demo_data/kjv_heldout_16k.txt"
SIZES = [(400, 800), (1200, 900)]
DEADLINE = 60  # seconds for one answer of the browser


class Browser:
    def __init__(self, program, profile):
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def place():  # descriptors 3 and 4, whatever these are called here
            to, back = os.dup(to_browser), os.dup(from_browser)
            os.dup2(to, 3)
            os.dup2(back, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.rest, self.number, self.session, self.events = b"", 0, None, []
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(domain + ".enable")

    def receive(self):
        end = time.monotonic() + DEADLINE
        while b"\0" not in self.rest:
            if not select.select([self.read_end], [], [], max(0, end - time.monotonic()))[0]:
                sys.exit(f"the browser says nothing for {DEADLINE} s")
            part = os.read(self.read_end, 1 << 16)
            if not part:
                sys.exit("the browser is gone")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)
        sys.exit(f"{method}: no answer")

    def wait_for(self, method):
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self.receive())

    def value(self, script):
        result = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, path, width, height, scheme):
        self.events = []
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.media("screen", scheme)
        self.ask("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def media(self, media, scheme):
        self.ask("Emulation.setEmulatedMedia", media=media,
                 features=[{"name": "prefers-color-scheme", "value": scheme}])

    def noise(self):
        """What the console, the log and the network have of the page that is open."""
        found = []
        for e in self.events:
            if e.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(e["params"])[:300])
            if e.get("method") == "Network.requestWillBeSent" and not e["params"]["request"]["url"].startswith("file:"):
                found.append("fetches " + e["params"]["request"]["url"][:100])
        return found

    def close(self):
        self.process.terminate()
        self.process.wait()


# What every page must answer with true (or an empty list).
IS_NARROW = "document.documentElement.scrollWidth <= innerWidth"
OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('svg') &&
  e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.tagName + '#' + e.id)"""
CONTRASTS = r"""(() => {
  const linear = v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = text => {
    const [r, g, b] = text.match(/[\d.]+/g).slice(0, 3).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const bad = [];
  for (const e of [document.body, ...document.querySelectorAll('.b0, .b1, .b2, .b3')]) {
    const style = getComputedStyle(e), a = light(style.color), b = light(style.backgroundColor);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(e.className + ' ' + ratio.toFixed(2));
  }
  return [...new Set(bad)];
})()"""
BACK = "Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])"
SEARCH = """(() => {
  const rows = () => document.querySelectorAll('#list tbody tr').length, all = rows();
  const box = document.getElementById('search'), name = document.querySelector('#list tbody td').textContent;
  box.value = name; box.dispatchEvent(new Event('input'));
  const found = rows();
  box.value = ''; box.dispatchEvent(new Event('input'));
  return found >= 1 && (found < all || all === 1) && rows() === all;
})()"""
SORT = """(() => {
  const first = () => document.querySelector('#list tbody td').textContent;
  const head = () => document.querySelector('#list th');
  head().click(); const one = first(); head().click(); const other = first();
  return document.querySelectorAll('#list tbody tr').length < 2 || one !== other;
})()"""
EACH_METRIC = """(() => {
  const box = document.getElementById('metric'), empty = [], count = s => document.querySelectorAll(s).length;
  for (const option of box.options) {
    box.selectedIndex = option.index; box.dispatchEvent(new Event('change'));
    if (count('#heat td[class^=b]') === 0 || count('#legend span') < 4) empty.push(option.text);
  }
  box.selectedIndex = 0; box.dispatchEvent(new Event('change'));
  return empty;
})()"""
# A click on a module shows its histogram: bars, and dashed lines where the representable range ends.
HISTOGRAMS = """(() => {
  const count = s => document.querySelectorAll(s).length, name = document.querySelector('#list tbody td').textContent;
  document.querySelector('#list tbody tr').click();
  return count('#charts svg rect') > 4 && count('#charts svg line') >= 1 &&
    document.getElementById('chosen').textContent.startsWith(name);
})()"""
DRAWN = ("damage", "comparison")  # pages whose modules come with histograms


def make_pages(binary, work):
    """[(file, texts that it must show)]"""
    pages = []

    def run(*arguments):
        done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"fp8 {' '.join(map(str, arguments))}: {done.stderr}")
        return done

    def page(name, texts, *arguments):
        file = work / (name + ".html")
        done = run(*arguments, "--html", file)
        if not file.exists():
            sys.exit(f"{name}: {done.stderr}")
        pages.append((file, texts))

    channel, tensor = work / "channel", work / "tensor"
    for out, more in ((channel, []), (tensor, ["--weights-only", "--scheme", "tensor"])):
        shutil.rmtree(out, ignore_errors=True)
        run("quantize", "--model", MODEL, "--out", out, *(more or ["--dynamic"]), "--quiet")
    page("damage", ["28 modules, all within", "nothing to exclude", "from 30 dB: 28", "Kept in high precision"],
         "inspect", MODEL)
    page("comparison", ["against", "nothing to exclude", "weight saturated"], "inspect", tensor, "--reference", MODEL)
    page("forms", ["against", "28 modules"], "inspect", tensor, "--reference", channel)
    page("fp8", ["28 modules; SQNR needs the original", "none saturates"], "inspect", channel)
    page("quantize", ["not evaluated", "before", "Modules by precision", "The worst 5 of 29 modules", "nothing unusual",
                      "fp8 quantize kjv-byte-1.7M --out quantize-out", "Outside of the layers", "lm_head"],
         "quantize", MODEL, "--out", work / "quantize-out", "--dynamic", "--include", "lm_head", "--overwrite")
    evaluate = ["evaluate", "--data", TEXT, "--seq-len", "256", "--samples", "8", "--reference", MODEL, tensor]
    if subprocess.run([binary, *map(str, evaluate)], capture_output=True, check=False).returncode == 0:  # LibTorch is there
        page("evaluate", ["perplexity change", "95 %:", "Intervals:", "of 30 with a matrix", "against kjv-byte-1.7M"], *evaluate)
        page("several", ["Quality and size", "kjv-byte-1.7M (reference)", "channel: modules by precision"], *evaluate, channel)
    before, after = work / "before", work / "after"
    for folder, factor in ((before, 1.0), (after, 1.3)):
        folder.mkdir(exist_ok=True)
        nodes = {f"model.layers.{i}.{m}": {"inputs": [[[factor ** (i % 3) * (i + 1)]]], "outputs": [[[30.0]]],
                                           "params": {"weight": [[1.5]]}}
                 for i in range(12) for m in ("self_attn.q_proj", "mlp.down_proj")}
        if folder == after:
            nodes["model.layers.3.mlp.down_proj"]["inputs"] = [[[float("nan")]]]
            nodes["model.layers.4.mlp.down_proj"]["inputs"] = [[[0.0]]]
        else:
            nodes["lm_head"] = {"inputs": [[[7.0]]], "params": {"weight": [[0.5]]}}
        (folder / "inc_output_hooks_maxabs.json").write_text(json.dumps(
            {"GlobalRank": None, "LocalRank": None, "Mode": "DynamicRange", "NumSamples": 8, "Nodes": nodes}))
        (folder / "inc_output_hooks_maxabs_mod_list.json").write_text(json.dumps(list(nodes)))
    page("measurement", ["24 modules", "2 modules have bad values", "NaN or Inf", "bad: 2"], "inspect", after)
    good = work / "good"
    good.mkdir(exist_ok=True)
    text = (after / "inc_output_hooks_maxabs.json").read_text().replace("NaN", "2.0").replace("[[[0.0]]]", "[[[1.0]]]")
    (good / "inc_output_hooks_maxabs.json").write_text(text)
    shutil.copy(after / "inc_output_hooks_maxabs_mod_list.json", good)
    page("difference", ["tensors compared", "In one of the two alone", "lm_head"], "measurements", "diff", before, good)
    run_folder = work / "run"
    run_folder.mkdir(exist_ok=True)
    with (run_folder / "log.jsonl").open("w") as log:
        for step in range(1, 301):
            entry = {"step": step, "loss": 5.0 / (1 + step / 50) + 0.1 * ((step * 7919) % 13) / 13, "tokens": 4096,
                     "seconds": 0.5}
            if step % 10 == 0:
                modules = {f"model.layers.{i}.mlp.up_proj": {"elements": 1000, "saturated": (step * i) % 4,
                                                             "underflowed": 20 + i, "amax": 3.0 + i + step / 100}
                           for i in range(4)}
                entry["fp8"] = {"elements": 4000, "saturated": sum(m["saturated"] for m in modules.values()),
                                "underflowed": 86, "amax": 7 + step / 100, "modules": modules}
            if step % 50 == 0:
                entry["eval_loss"] = entry["loss"] + 0.05
            log.write(json.dumps(entry) + "\n")
    page("training", ["300 steps", "Training loss", "Largest amax", "Saturated", "Underflow", "modules saturate"],
         "inspect", run_folder)
    trace = work / "a.trace.json"
    events = [{"ph": "X", "cat": "hpu_op", "name": f"hpu::op_{i % 5}", "ts": i * 20, "dur": 15, "pid": 1, "tid": 1}
              for i in range(200)]
    trace.write_text(json.dumps({"traceEvents": events}))
    page("trace", ["a.trace.json", "Wheel:"], "inspect", trace)
    large = [{"name": f"model.layers.{i // 40}.mlp.experts.{i % 40}.up_proj", "type": "Linear", "scheme": "E4M3",
              "sqnr_db": 15 + (i * 7919) % 200 / 10, "weight": None, "input": None} for i in range(4000)]
    damage = (work / "damage.html").read_text()
    head, rest = damage.split('<script id="data" type="application/json">', 1)
    data, tail = rest.split("</script>", 1)
    report = json.loads(data)
    report.update(modules=large, title="a/very/long/path/without/a/space/" + "x" * 120, summary="4000 modules")
    (work / "large.html").write_text(head + '<script id="data" type="application/json">' + json.dumps(report)
                                     + "</script>" + tail)
    pages.append((work / "large.html", ["4000 modules", "The first 1000 of 4000"]))
    return pages


def check(browser, file, texts, work):
    problems = []
    report = file.stem not in ("trace", "several")
    for width, height in SIZES:
        for scheme in ("light", "dark"):
            browser.open(file, width, height, scheme)
            where = f"{file.stem} {width} px {scheme}"
            if not browser.value(IS_NARROW):
                problems.append(f"{where}: wider than the window: {browser.value(OUTSIDE)}")
            shown = browser.value("document.body.innerText")
            problems += [f"{where}: does not say '{t}'" for t in texts if t not in shown]
            problems += [f"{where}: shows '{t}'" for t in ("undefined", "NaN %", "[object") if t in shown]
            problems += [f"{where}: contrast {c}" for c in browser.value(CONTRASTS)]
            if (browser.value(BACK) < 128) != (scheme == "dark"):
                problems.append(f"{where}: the background is not {scheme}")
            picture = browser.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
            (work / f"{file.stem}-{width}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))
            if report:
                for name, script in (("search", SEARCH), ("sorting", SORT)):
                    if not browser.value(script):
                        problems.append(f"{where}: {name} does not work")
                if file.stem in DRAWN and not browser.value(HISTOGRAMS):
                    problems.append(f"{where}: a click draws no histogram")
                if not browser.value(IS_NARROW):
                    problems.append(f"{where}: wider than the window after clicks: {browser.value(OUTSIDE)}")
                problems += [f"{where}: nothing drawn for '{m}'" for m in browser.value(EACH_METRIC)]
            problems += [f"{where}: console: {n}" for n in browser.noise()]
    browser.open(file, 1047, 718, "dark")  # A4 across less 10 mm all around, at 96 dpi
    browser.media("print", "dark")
    if not browser.value(IS_NARROW):
        width = browser.value("document.documentElement.scrollWidth")
        problems.append(f"{file.stem} on paper: {width} px, wider than the page")
    browser.media("", "light")
    pdf = browser.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
    pdf = base64.b64decode(pdf["data"])
    if not pdf.startswith(b"%PDF-"):
        problems.append(f"{file.stem}: no PDF")
    (work / f"{file.stem}.pdf").write_bytes(pdf)
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the fp8 program")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="a folder for pages, screenshots and PDFs")
    parser.add_argument("--only", help="one page of them")
    options = parser.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next((p for p in map(shutil.which, names) if p), None)
    if program is None:
        print(f"skipped: found none of {', '.join(names)} (Debian: apt-get install chromium)")
        return 0
    options.work.mkdir(parents=True, exist_ok=True)
    pages = make_pages(os.path.abspath(options.binary), options.work)
    browser = Browser(program, options.work / "profile")
    problems = []
    try:
        for file, texts in pages:
            if options.only in (None, file.stem):
                problems += check(browser, file, texts, options.work)
    finally:
        browser.close()
        shutil.rmtree(options.work / "profile", ignore_errors=True)
    print("\n".join(problems) or f"{len(pages)} pages are as they should be")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
