// SPDX-License-Identifier: Apache-2.0
// The forms in which a quantized checkpoint is written.
#pragma once
#include <cstdint>

namespace fp8::quant {

/// compressed_tensors: transformers, vLLM. inc: Intel Neural Compressor's own ("huggingface"), which its load() reads.
/// inc_vllm: what it calls "vllm": compressed_tensors with one static scale per tensor. fp8: fine-grained (DeepSeek)
/// with block scales, vLLM's plain fp8 with one scale per tensor. modelopt: NVIDIA ModelOpt's. quark: AMD Quark's,
/// beside experts in MXFP4.
enum class CheckpointFormat : std::uint8_t { compressed_tensors, inc, inc_vllm, fp8, modelopt, quark };

constexpr const char* name_of(CheckpointFormat format) {
  switch (format) {
    case CheckpointFormat::compressed_tensors:
      return "compressed-tensors";
    case CheckpointFormat::inc:
      return "inc";
    case CheckpointFormat::inc_vllm:
      return "inc-vllm";
    case CheckpointFormat::fp8:
      return "fp8";
    case CheckpointFormat::modelopt:
      return "modelopt";
    case CheckpointFormat::quark:
      break;
  }
  return "quark";
}

}  // namespace fp8::quant
