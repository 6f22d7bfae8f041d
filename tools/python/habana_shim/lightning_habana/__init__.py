# SPDX-License-Identifier: Apache-2.0
"""Emulation: the names of lightning-habana over fp8.lightning."""

import habana_frameworks  # noqa: F401: refuses beside the real one

import fp8.lightning as _lightning

__getattr__ = _lightning.__getattr__
_lightning.aliases(__name__)
