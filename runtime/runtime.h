// SPDX-License-Identifier: Apache-2.0
// The headers of runtime that programs use: the device and its memory, autocast, operators of their own, groups of
// processes, modules for attention's operations. The hpu:: operators have headers of their own (runtime/ops), as has
// all that only the folders above need.
#pragma once
#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/graph/module_cacher.h"
#include "fp8/runtime/lazy/lazy_mode.h"
#include "fp8/runtime/modules/op_modules.h"
