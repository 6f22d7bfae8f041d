// SPDX-License-Identifier: Apache-2.0
// All of measure.
#pragma once
#include "fp8/measure/calibration/recorder.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/measure/files/histogram.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/files/observer_types.h"
#include "fp8/measure/files/stats_files.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/measure/observers/observer.h"
#include "fp8/measure/ranks/ranks.h"
