# SPDX-License-Identifier: Apache-2.0
"""Emulation: the names of lightning-habana over fp8.lightning."""

import habana_frameworks  # noqa: F401: refuses beside the real one

import fp8.lightning as _lightning


def __getattr__(name: str) -> object:
    return getattr(_lightning, name)


_lightning.aliases(__name__)
