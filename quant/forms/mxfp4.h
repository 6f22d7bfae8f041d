// SPDX-License-Identifier: Apache-2.0
// Experts that a checkpoint holds in MXFP4 (OCP Microscaling Formats v1.0: 32 E2M1 codes share an E8M0 scale), as
// gpt_oss is published. They are carried through, never decoded. No torch here.
//
//   P.experts.gate_up_proj_blocks   U8 [E, 2 I, H/32, 16]   two codes a byte, the first in the low half
//   P.experts.gate_up_proj_scales   U8 [E, 2 I, H/32]       2^(byte - 127)
#pragma once
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// What a form that needs_mxfp4() says of any other source.
inline constexpr char kNeedsMxfp4[] =
    "quark is written for checkpoints of gpt_oss whose experts are in MXFP4, found none; compressed-tensors has a "
    "place for all else";

/// True for the config.json of gpt_oss as it is published.
bool says_mxfp4(const io::Json& model_config);

/// The names of the tensors of codes, in file order. Throws io::Error naming one whose scales do not fit it.
std::vector<std::string> mxfp4_stacks(const io::Checkpoint& checkpoint);

}  // namespace fp8::quant
