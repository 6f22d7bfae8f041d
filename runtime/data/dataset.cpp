// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/dataset.h"

#include <ATen/CPUGeneratorImpl.h>

#include <stdexcept>
#include <utility>

namespace fp8::data {

std::uint64_t SampleRandom::below(std::uint64_t n) {
  const std::uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  std::uint64_t x;
  do x = next();
  while (x >= limit);
  return x % n;
}

at::Generator SampleRandom::generator() { return at::make_generator<at::CPUGeneratorImpl>(next()); }

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw std::invalid_argument("[data] TensorDataset: found no tensor, allowed: 1 or more");
  for (const auto& tensor : tensors_)
    if (tensor.dim() < 1 || tensor.size(0) != tensors_[0].size(0))
      throw std::invalid_argument(c10::str("[data] TensorDataset: found sizes ", tensors_[0].sizes(), " and ",
                                           tensor.sizes(), ", allowed: as many samples in each"));
}

std::vector<at::Tensor> TensorDataset::get(std::int64_t index, SampleRandom&) const {
  std::vector<at::Tensor> sample;
  for (const auto& tensor : tensors_) sample.push_back(tensor.select(0, index));
  return sample;
}

}  // namespace fp8::data
