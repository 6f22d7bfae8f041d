// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/mxfp4.h"

#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {

bool says_mxfp4(const io::Json& model_config) {
  const io::Json quantization = model_config.value("quantization_config", io::Json());
  return model_config.value("model_type", io::Json()) == "gpt_oss" && quantization.is_object() &&
         quantization.value("quant_method", io::Json()) == "mxfp4";
}

std::vector<std::string> mxfp4_stacks(const io::Checkpoint& checkpoint) {
  constexpr std::string_view kBlocks = "_blocks";
  std::vector<std::string> stacks;
  for (const auto& tensor : checkpoint.names()) {
    if (!tensor.ends_with(kBlocks)) continue;
    const std::string scales = tensor.substr(0, tensor.size() - kBlocks.size()) + "_scales";
    const auto& blocks = checkpoint.info(tensor);
    if (blocks.dtype != io::DType::U8 || !checkpoint.contains(scales)) continue;
    std::vector<std::int64_t> shape = checkpoint.info(scales).shape;
    shape.push_back(16);
    if (checkpoint.info(scales).dtype != io::DType::U8 || blocks.shape != shape)
      io::fail_at(form_parts::place(checkpoint, tensor),
                  "found U8 " + io::shape_text(blocks.shape) + " with scales " +
                      io::name_of(checkpoint.info(scales).dtype) + " " + io::shape_text(checkpoint.info(scales).shape) +
                      ", expected MXFP4: U8 [..., K/32, 16] with U8 [..., K/32]");
    stacks.push_back(tensor);
  }
  return stacks;
}

}  // namespace fp8::quant
