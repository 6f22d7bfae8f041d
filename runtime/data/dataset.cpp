// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/dataset.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::data {

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

namespace {

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return c10::str(tensor.scalar_type(), " of sizes ", tensor.sizes(), " on ", tensor.device());
}

}  // namespace

std::vector<at::Tensor> stack_samples(const std::vector<Sample>& samples, bool pinned,
                                      const std::function<std::string(std::size_t)>& name_of) {
  const auto refuse = [&](std::size_t i, const std::string& found, const std::string& allowed) {
    io::fail<std::invalid_argument>("[data] {}: found {}, allowed: {}", name_of(i), found, allowed);
  };
  std::vector<at::Tensor> batch;
  const Sample& first = samples.at(0);
  for (std::size_t i = 1; i < samples.size(); ++i)
    if (samples[i].size() != first.size())
      refuse(i, std::to_string(samples[i].size()) + " tensors", std::to_string(first.size()) + ", as in " + name_of(0));
  for (std::size_t t = 0; t < first.size(); ++t) {
    const at::Tensor& like = first[t];
    if (!like.defined() || !like.device().is_cpu() || like.layout() != at::kStrided)
      refuse(0, text_of(like), "a dense tensor on the CPU");
    std::vector<std::int64_t> sizes = like.sizes().vec();
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(samples.size()));
    batch.push_back(at::empty(sizes, like.options().requires_grad(false).pinned_memory(pinned)));
    // By hand: at::stack would start the pool of every worker's thread.
    auto* to = static_cast<char*>(batch.back().mutable_data_ptr());
    const std::size_t bytes = like.nbytes();
    for (std::size_t i = 0; i < samples.size(); ++i, to += bytes) {
      const at::Tensor& part = samples[i][t];
      if (!part.defined() || part.scalar_type() != like.scalar_type() || part.sizes() != like.sizes() ||
          !part.device().is_cpu() || part.layout() != at::kStrided)
        refuse(i, text_of(part), text_of(like) + ", as tensor " + std::to_string(t) + " of " + name_of(0));
      if (bytes > 0) std::memcpy(to, part.contiguous().const_data_ptr(), bytes);
    }
  }
  return batch;
}

}  // namespace fp8::data
