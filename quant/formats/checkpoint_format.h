// SPDX-License-Identifier: Apache-2.0
// The forms in which a quantized checkpoint is written.
#pragma once
#include <cstdint>

namespace fp8::quant {

/// compressed_tensors: transformers, vLLM. inc: Intel Neural Compressor's own ("huggingface"), which its load() reads. inc_vllm: what it calls
/// "vllm": compressed_tensors with one static scale per tensor.
enum class CheckpointFormat : std::uint8_t { compressed_tensors, inc, inc_vllm };

constexpr const char* name_of(CheckpointFormat format) {
  return format == CheckpointFormat::compressed_tensors ? "compressed-tensors"
         : format == CheckpointFormat::inc              ? "inc"
                                                        : "inc-vllm";
}

}  // namespace fp8::quant
