// SPDX-License-Identifier: Apache-2.0
// All of measure.
#pragma once
#include "fp8/measure/calibration/session.h"
#include "fp8/measure/ranks/ranks.h"
