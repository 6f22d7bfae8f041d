// SPDX-License-Identifier: Apache-2.0
// All of measure.
#pragma once
#include "fp8/measure/calibration/options.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/measure/calibration/staged.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/files/stats_files.h"
#include "fp8/measure/model/model_fingerprint.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/measure/observers/histogram.h"
#include "fp8/measure/observers/kept.h"
#include "fp8/measure/observers/merge_states.h"
#include "fp8/measure/observers/observer.h"
#include "fp8/measure/observers/registry.h"
#include "fp8/measure/observers/states.h"
#include "fp8/measure/ranks/compare.h"
#include "fp8/measure/ranks/ranks.h"
