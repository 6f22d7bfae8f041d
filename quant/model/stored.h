// SPDX-License-Identifier: Apache-2.0
// A converted weight outside of its model: as bytes for processes and files, as values are too, and as codes with
// scales beside them, which a state dict has.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace fp8::quant {

/// A converted weight (or a copy of one on the host, or its transpose) as bytes on the host: codes, scales, scheme and
/// name. Throws c10::Error naming the module for a part of it. Any other tensor: its values, dtype and sizes.
at::Tensor packed(const at::Tensor& tensor);

/// That weight on hpu; values on the host. Throws c10::Error or io::Error for other bytes.
at::Tensor unpacked(const at::Tensor& bytes);

/// What lies beside the codes, f32 on the weight's device: its scales, one value, [.., outputs, 1] or, of a transposed
/// weight, [.., 1, outputs], or the grid of blocks; then the scale of its input, of static activations. Values are
/// codes * scale, but for blocks.
std::vector<at::Tensor> scales_beside(const at::Tensor& weight);

/// A copy of codes on hpu with such scales, which stands for the weight `like` from then on. Throws c10::Error for what
/// is not of its kind.
at::Tensor with_scales(const at::Tensor& codes, const at::Tensor& like, const std::optional<at::Tensor>& scale,
                       const std::optional<at::Tensor>& input_scale);

}  // namespace fp8::quant
