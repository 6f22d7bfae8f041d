// SPDX-License-Identifier: Apache-2.0
// convert_modules() with inference = true: measuring, quantizing, planning, and the way back. The plugin's arguments
// become options of measure and quant here.
#pragma once
#include "fp8/quant/model/convert.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"

namespace fp8::te {

/// As HPUPrecisionPlugin::convert_modules() says. Training handlers that the model has go, with a warning, once nothing
/// can fail any more.
quant::ConversionReport convert_for_inference(const torch::nn::Module& model, const ConvertOptions& options);
quant::ConversionReport convert_for_inference(const torch::jit::Module& model, const ConvertOptions& options);

/// Weights in fp8 become what their codes stand for, in the dtype they had; modules without a weight lose their
/// handlers; a calibration ends and writes its files. Returns how many weights and modules were in fp8.
int restore_inference(const torch::nn::Module& model);

}  // namespace fp8::te
