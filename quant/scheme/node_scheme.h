// SPDX-License-Identifier: Apache-2.0
// What decides the numbers of a module without a weight, and how its scales are made of its measurement. No torch here.
//
//   kind          input scales                               output scales
//   matmul        inputs 0, 1                                product of the two
//   b2b_matmul    input 0, output 0                          product of the two      (padding holds garbage in input 1)
//   softmax       -                                          output 0
//   fused_sdpa    inputs 0, 1, 2 (q, k, v), output 1 (P)     output 0 (o); none: o is not cast
//   kv_cache      input 0, or one for each head of it        the same
//   dynamic_moe   input 0, outputs 1 .. E (each expert)      output 0; not used: y stays in high precision
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "fp8/configs/module_types.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// What shares a scale of a key-value cache.
enum class KvGranularity : std::uint8_t { tensor, head };
constexpr auto names_of(KvGranularity) {
  using enum KvGranularity;
  return std::to_array<EnumName<KvGranularity>>({{tensor, "tensor"}, {head, "head"}});
}

struct NodeScheme : Numbers {
  configs::ModuleKind kind = configs::ModuleKind::matmul;
  bool dynamic = false;                 ///< scales are made at each call; the lists below are empty
  bool per_token = true;                ///< dynamic: one scale a row (a's) or column (b's), else one a tensor
  recipes::ScaleMethod dynamic_method;  ///< dynamic, INC's convention
  std::vector<float> input_scale_inv, output_scale_inv;

  /// "E4M3 matmul, static scales, gaudi2".
  std::string describe() const;
};

/// What the static scales of one module are made of.
struct NodeMeasurement {
  const Numbers& numbers;
  const measure::Measurement* measured;  ///< null for methods of fixed values
  const recipes::ScaleMethod& method;
  const std::string& module;
  std::size_t experts;  ///< of dynamic_moe
  std::vector<std::string>& warnings;

  /// The scale_inv of the i-th input or output. Throws io::Error naming module and tensor: it was not measured.
  float input(std::size_t i) const;
  float output(std::size_t i) const;
  /// That of `amax`; `tensor` stands in messages.
  float scale(float amax, const char* tensor) const;
};

/// Fills in the two lists of scales, which are empty before.
using NodeScaleRule = std::function<void(NodeScheme& scheme, const NodeMeasurement& from)>;
/// The table above, and what registrations add (quant/handlers/node_handler.h).
configs::KindTable<NodeScaleRule>& node_scale_rules();

/// Fills in the static scales by the rule of scheme.kind. `measured`: null for methods of fixed values. experts: of
/// dynamic_moe. An expert that no token was given to in calibration (amax 0) takes the largest of the others, and
/// `warnings` says so. Throws io::Error naming module and tensor: measurements that are missing, or in another number
/// than the experts.
void set_node_scales(NodeScheme& scheme, const measure::Measurement* measured, const recipes::ScaleMethod& method,
                     const std::string& module, std::size_t experts, std::vector<std::string>& warnings);

/// The amax of each expert's intermediate values, as set_node_scales() takes them.
std::vector<float> expert_amax(const measure::Measurement& measured, std::size_t experts,
                               std::vector<std::string>& warnings);

/// One amax of a measurement: tensor "inputs" or "outputs", by index; of values per channel the largest. Throws
/// io::Error as above.
float one_amax(const measure::Measurement& measured, bool input, std::size_t index);

}  // namespace fp8::quant
