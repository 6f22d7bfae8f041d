# SPDX-License-Identifier: Apache-2.0
"""The build backend: scikit-build-core's, without source distributions, for the C++ sources lie outside of this folder."""

from scikit_build_core.build import (  # noqa: F401
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("fp8-toolkit: found a request for a source distribution, allowed: a wheel (pip wheel, python -m build --wheel): "
                     "the C++ sources lie above this folder, and no archive of it would have them")
