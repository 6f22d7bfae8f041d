// SPDX-License-Identifier: Apache-2.0
// Reading scale_method together with the backoffs of scale_params. Inside of configs only.
#pragma once
#include <optional>
#include <string>

#include "fp8/configs/scale_methods.h"

namespace fp8::configs::detail {

struct Backoffs {
  std::optional<float> weight, activation;
};

/// A string or the object of scale_methods.h; a backoff is taken where the JSON has none of its own. Throws io::Error
/// naming file and path of keys: "FILE: key 'scale_method.layers.3.weight.rounding_method': found "POW", allowed:
/// IDENTITY, POW2, ...". `key`: "scale_method".
ScaleMethods read_scale_methods(const io::Json& json, const std::string& file, const std::string& key,
                                const Backoffs& backoffs);

}  // namespace fp8::configs::detail
