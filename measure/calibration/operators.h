// SPDX-License-Identifier: Apache-2.0
// Calibration as operators (the list of all: runtime/intercept/tag_operators.h). A session is a number; measure_end()
// ends it, and so does the end of the program, which writes its files.
//
//   s = fp8::measure_begin(weights, modules, types, biases, "stats/inc_output")    run data    fp8::measure_end(s)
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/model/module_tree.h"

namespace fp8::measure {

using Biases = c10::List<std::optional<at::Tensor>>;

/// The model that an operator was given: weights[i] is the weight of modules[i], a types[i]. biases: none, or one (or
/// None) for each. Throws c10::Error "[fp8::op] argument: ..." for lists of other lengths, names that come twice, and
/// types of no known class.
std::vector<WeightModule> model_of(const char* op, at::TensorList weights, const std::vector<std::string>& modules,
                                   const std::vector<std::string>& types,
                                   const std::optional<Biases>& biases = std::nullopt);

/// Hangs watchers on the selected weights (on hpu, in high precision). biases: where they are added after the product
/// (x of other than two dimensions), outputs are measured with them. config: a QUANT_CONFIG as JSON or a file's path;
/// "": every Linear and Conv2d, the largest magnitude. prefix: where measure_end() writes; "": where the config says,
/// else nowhere.
std::int64_t measure_begin(at::TensorList weights, const std::vector<std::string>& modules,
                           const std::vector<std::string>& types, const std::optional<Biases>& biases,
                           const std::string& prefix, const std::string& config);

/// The next forward sees samples [first, first + count). Throws c10::Error for an unknown session, first < 0, count <
/// 1.
void measure_samples(std::int64_t session, std::int64_t first, std::int64_t count);

/// JSON of all that was seen so far, amaxes as lists; non_finite: [module, tensor, sample, "nan" or "inf"].
std::string measure_result(std::int64_t session);

/// Takes the watchers off. write: the files first; their paths. Where writing throws, the session goes on.
std::vector<std::string> measure_end(std::int64_t session, bool write);

}  // namespace fp8::measure
