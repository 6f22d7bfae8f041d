// SPDX-License-Identifier: Apache-2.0
// Helpers that the tests of optimizers share.
#pragma once

#include "fp8/runtime/kernels/thread_pool.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"
#include "support/values.h"

namespace fp8::test {

/// Parameters of several shapes with gradients, the same for the same seed.
inline std::vector<at::Tensor> parameters(const at::Device& device, at::ScalarType type = at::kFloat, int seed = 1) {
  torch::manual_seed(seed);
  std::vector<at::Tensor> result;
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{7}, {33, 65}, {3, 5, 2}, {5000}})
    result.push_back(torch::randn(sizes).to(device, type).requires_grad_());
  return result;
}

/// New gradients of that step, standard deviation `size`.
inline void set_grads(const std::vector<at::Tensor>& params, int step, double size = 1) {
  torch::manual_seed(1000 + step);
  for (const at::Tensor& p : params)
    p.mutable_grad() = (torch::randn(p.sizes()) * size).to(p.device(), p.scalar_type());
}

inline std::vector<at::Tensor> values(const std::vector<at::Tensor>& params) {
  return collected(params, [](const at::Tensor& p) { return p.detach().cpu().clone(); });
}

inline void copy_values(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i].detach().copy_(from[i].detach());
}

/// Steps first to last - 1, each with its gradients.
template <class Optimizer>
void run_steps(const std::vector<at::Tensor>& params, Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) set_grads(params, step), optimizer.step();
}
template <class A, class B>
void run_both(const std::vector<at::Tensor>& ours, A& a, const std::vector<at::Tensor>& theirs, B& b, int first,
              int last) {
  run_steps(ours, a, first, last), run_steps(theirs, b, first, last);
}

inline void expect_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs, double relative,
                         double absolute) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::allclose(f64(ours[i]), f64(theirs[i]), relative, absolute)) << i;
}
inline void expect_same_bits(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(same_bits(ours[i].detach().cpu(), theirs[i].detach().cpu())) << i;
}

/// Sets the kernels' threads while it lives.
struct Threads {
  explicit Threads(int n) : before(kernels::num_threads()) { kernels::set_num_threads(n); }
  ~Threads() { kernels::set_num_threads(before); }
  int before;
};

template <class F>
std::string through_archive(const F& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}
inline torch::serialize::InputArchive archive_of(const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}
template <class Optimizer>
torch::serialize::InputArchive archive_of_state(const Optimizer& optimizer) {
  return archive_of(through_archive([&](auto& archive) { optimizer.save(archive); }));
}

}  // namespace fp8::test
