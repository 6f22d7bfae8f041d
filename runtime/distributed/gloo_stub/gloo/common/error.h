// SPDX-License-Identifier: Apache-2.0
// See context.h.
#pragma once
#include <gloo/context.h>
