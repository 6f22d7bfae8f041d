// SPDX-License-Identifier: Apache-2.0
// Gives fp8_test_pch and fp8_test_torch_pch a source: the tests share their precompiled headers.
