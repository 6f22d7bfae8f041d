// SPDX-License-Identifier: Apache-2.0
// The vendor's newer interface for custom operators: one function says the forms of all results. As hpu_custom_op.h.
//
//   registerUserCustomOp("custom_op::relu", "relu_fwd_f32", output_meta, fill_params);
//   return UserCustomOpDescriptor::getUserCustomOpDescriptor("custom_op::relu").execute({self})[0];
#pragma once
#include "fp8/runtime/custom/hpu_custom_op.h"

namespace habana {

struct PartialOutputMetaData {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
};
using PartialOutputMetaDataVector = std::vector<PartialOutputMetaData>;

namespace custom_op {

using OutputMetaFn = std::function<PartialOutputMetaDataVector(const at::Stack& inputs)>;
using FillParamsFn = user_param_function;

/// Throws c10::Error where the schema name is taken, in either interface.
void registerUserCustomOp(const std::string& schema, const std::string& guid, OutputMetaFn output_meta_fn,
                          FillParamsFn fill_params_fn);

class UserCustomOpDescriptor {
 public:
  UserCustomOpDescriptor() = default;
  UserCustomOpDescriptor(std::string schema, std::string guid, OutputMetaFn output_meta_fn,
                         FillParamsFn fill_params_fn = nullptr)
      : schema_(std::move(schema)),
        guid_(std::move(guid)),
        output_meta_fn_(std::move(output_meta_fn)),
        fill_params_fn_(std::move(fill_params_fn)) {}

  /// As HabanaCustomOpDescriptor's.
  std::vector<at::Tensor> execute(const std::vector<c10::IValue>& inputs) const;
  static const UserCustomOpDescriptor& getUserCustomOpDescriptor(const std::string& op);

  const std::string& getSchemaName() const { return schema_; }
  const std::string& getGuid() const { return guid_; }
  const OutputMetaFn& getOutputMetaFn() const { return output_meta_fn_; }
  const FillParamsFn& getFillParamsFn() const { return fill_params_fn_; }

 private:
  std::string schema_, guid_;
  OutputMetaFn output_meta_fn_;
  FillParamsFn fill_params_fn_;
};

}  // namespace custom_op
}  // namespace habana
