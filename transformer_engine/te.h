// SPDX-License-Identifier: Apache-2.0
// All of transformer_engine.
#pragma once
#include "fp8/transformer_engine/precision_plugin.h"
