// SPDX-License-Identifier: Apache-2.0
// All of measure.
#pragma once
#include "fp8/measure/calibration.h"
#include "fp8/measure/calibration_options.h"
#include "fp8/measure/compare.h"
#include "fp8/measure/histogram.h"
#include "fp8/measure/measurement_file.h"
#include "fp8/measure/model_fingerprint.h"
#include "fp8/measure/module_tree.h"
#include "fp8/measure/observer.h"
#include "fp8/measure/observer_states.h"
#include "fp8/measure/ranks.h"
#include "fp8/measure/stats_files.h"
