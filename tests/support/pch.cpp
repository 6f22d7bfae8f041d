// SPDX-License-Identifier: Apache-2.0
// The only user of <torch/torch.h>: gives fp8_test_pch a unit, so that the tests can share one precompiled header.
