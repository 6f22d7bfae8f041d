# SPDX-License-Identifier: Apache-2.0
"""sbom.py TREE LIBTORCH ARTEFACT...: ARTEFACT.spdx.json beside each file that is handed out, for tools/release: what is
inside it, of which version and under which licence (SPDX 2.3). Needs no package.

The rows of tools/NOTICE are what may be inside; TREE has the text of LibTorch's own notice."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

NOTICE = pathlib.Path(__file__).parent.parent / "NOTICE"
# What each part is of, for its version: a Debian package whose archive or headers were compiled in or copied.
PACKAGES = {"PCRE2": "libpcre2-dev", "zlib": "zlib1g-dev", "libpng": "libpng-dev",
            "libjpeg-turbo": "libjpeg-dev", "libyaml": "libyaml-dev", "utf8proc": "libutf8proc-dev", "Highway": "libhwy-dev",
            "nlohmann/json": "nlohmann-json3-dev", "CLI11": "libcli11-dev", "{fmt}": "libfmt-dev", "Eigen": "libeigen3-dev",
            "libstdc++, libgcc (of GCC)": "libstdc++6", "glibc": "libc6-dev", "LibTorch": "", "libgomp (part of GCC)": ""}
OF_TORCH = {"LibTorch", "libgomp (part of GCC)"}  # a wheel leaves these two to torch
NOT_STATIC = OF_TORCH | {"libpng", "libjpeg-turbo", "utf8proc"}  # the static program has no command for images or text
LIBTORCH_NOTICE = "LicenseRef-LibTorch-notice"


def rows(notice: str) -> list[tuple[str, str, str]]:
    """(name, licence as an SPDX expression, "static" where the static program alone has it)."""
    found = []
    for line in notice[notice.index("What fp8 is built with"):].splitlines():
        if not line.startswith("  "):
            continue
        name, licence, *where = re.split(r" {2,}", line.strip())
        licence = licence.replace("and what its own notice names", LIBTORCH_NOTICE)
        parts = [f"({part})" if " OR " in part else part for part in licence.split(", ")]
        found.append((name, " AND ".join(parts) if len(parts) > 1 else licence, "static" if "static" in "".join(where) else ""))
    return found


def parts_of(artefact: str, notice: str) -> list[tuple[str, str]]:
    """(name, licence) of what is inside a file of this name."""
    static = artefact.startswith(("fp8-static-", "fp8_cli-"))
    without = NOT_STATIC if static else OF_TORCH if artefact.startswith("fp8_toolkit-") else set()
    return [(name, licence) for name, licence, where in rows(notice) if name not in without and (static or where != "static")]


def version_of(name: str, libtorch: pathlib.Path) -> str:
    """KeyError for a row of NOTICE that nobody has thought of here."""
    package = PACKAGES[name]
    if package:
        run = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True)
        return run.stdout or "NOASSERTION"
    version = libtorch / "version.py"
    return re.search(r"__version__ = '([^']+)'", version.read_text())[1] if name == "LibTorch" and version.is_file() else "NOASSERTION"


def document(artefact: pathlib.Path, notice: str, libtorch: pathlib.Path, own_notice: str) -> dict:
    """The whole of it, the same for the same file, LibTorch and SOURCE_DATE_EPOCH."""
    digest = hashlib.sha256(artefact.read_bytes()).hexdigest()
    version = re.search(r"\d+\.\d+\.\d+", artefact.name)[0]

    def package(number: int, name: str, version: str, licence: str, **more) -> dict:
        return {"SPDXID": f"SPDXRef-Package-{number}", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False, "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": "NOASSERTION", **more}

    parts = parts_of(artefact.name, notice)
    packages = [package(0, "fp8", version, "Apache-2.0", packageFileName=artefact.name,
                        checksums=[{"algorithm": "SHA256", "checksumValue": digest}])]
    packages += [package(i, name, version_of(name, libtorch), licence) for i, (name, licence) in enumerate(parts, 1)]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", packages[0])] + [("SPDXRef-Package-0", "CONTAINS", one) for one in packages[1:]]
    extracted = [{"licenseId": LIBTORCH_NOTICE, "name": "LibTorch's notice", "extractedText": own_notice}]
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": artefact.name,
            "documentNamespace": f"https://spdx.org/spdxdocs/{artefact.name}-{digest}",
            "creationInfo": {"created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))),
                             "creators": ["Tool: fp8-tools-release"]},
            "packages": packages,
            "relationships": [{"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other["SPDXID"]}
                              for one, kind, other in relations],
            **({"hasExtractedLicensingInfos": extracted} if any(LIBTORCH_NOTICE in licence for _, licence in parts) else {})}


def main(tree: pathlib.Path, libtorch: pathlib.Path, *artefacts: pathlib.Path) -> None:
    own = tree / "share/doc/fp8/licenses/libtorch"
    for artefact in artefacts:
        text = json.dumps(document(artefact, NOTICE.read_text(), libtorch, own.read_text() if own.is_file() else "NOASSERTION"), indent=1)
        artefact.with_name(artefact.name + ".spdx.json").write_text(text + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: sbom.py TREE LIBTORCH ARTEFACT...")
    main(*(pathlib.Path(word) for word in sys.argv[1:]))
