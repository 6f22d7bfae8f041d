# SPDX-License-Identifier: Apache-2.0
"""Emulation: the names of optimum-habana over fp8.optimum. `optimum` is a namespace: other packages have parts of it."""

import habana_frameworks  # noqa: F401: refuses beside the real one

import fp8.optimum as _optimum
from fp8.optimum import *  # noqa: F403

_optimum.aliases(__name__)
