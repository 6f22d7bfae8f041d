// SPDX-License-Identifier: Apache-2.0
// std::cout << weight: LibTorch's operator<< calls at::print(), which knows no scales and has no hook. This definition
// of it is found first, since programs are linked to this library before LibTorch; all but converted weights goes on to
// LibTorch's.
//
//    0.5000 -1.2500
//    2.0000  0.2500
//   [ HPUFloat8_e4m3fnType{2,2}, weight of 'fc1': E4M3 tensor weights, scale_inv 0.25 ]
#include <ATen/core/Formatting.h>
#include <dlfcn.h>

#include <sstream>
#include <string>

#include "fp8/runtime/intercept/weight_values.h"

namespace {

using Print = std::ostream& (*)(std::ostream&, const at::Tensor&, std::int64_t);

Print of_libtorch() {
  static const auto print = reinterpret_cast<Print>(dlsym(RTLD_NEXT, "_ZN2at5printERSoRKNS_6TensorEl"));
  TORCH_CHECK(print != nullptr, "[print] expected LibTorch behind this library, found none");
  return print;
}

}  // namespace

namespace at {

std::ostream& print(std::ostream& stream, const Tensor& tensor, std::int64_t linesize) {
  const std::string weight = fp8::describe_weight(tensor);
  if (weight.empty()) return of_libtorch()(stream, tensor, linesize);
  std::ostringstream text;
  of_libtorch()(text, fp8::runtime::values_of_weight(tensor).to(at::kCPU, at::kDouble), linesize);
  const std::string values = text.str();
  std::ostringstream sizes;  // as LibTorch writes them: {4,6}
  for (std::int64_t i = 0; i < tensor.dim(); ++i) sizes << (i == 0 ? "{" : ",") << tensor.size(i);
  return stream << values.substr(0, values.rfind("[ ")) << "[ " << tensor.toString() << (tensor.dim() == 0 ? "{" : "")
                << sizes.str() << "}, " << weight << " ]";
}

}  // namespace at
