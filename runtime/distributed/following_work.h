// SPDX-License-Identifier: Apache-2.0
// Works of our own.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace fp8::runtime::distributed {

/// What a future will have, as a Work. Whoever completes the future keeps to a timeout of its own.
class FutureWork : public c10d::Work {
 public:
  FutureWork(c10::intrusive_ptr<c10::ivalue::Future> future, c10d::OpType type)
      : Work(-1, type), future_(std::move(future)) {}

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override { return future_->hasError() ? future_->exception_ptr() : nullptr; }
  std::vector<at::Tensor> result() override { return future_->value().toTensorVector(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return 0; }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    future_->waitAndThrow();
    return true;
  }

 private:
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// A Work of Gloo, and what this process does itself once that is through.
class FollowingWork final : public FutureWork {
 public:
  /// second: runs on Gloo's thread, or the caller's where first is through; what it throws is the Work's error.
  /// results: of the Work, on the CPU.
  FollowingWork(const c10::intrusive_ptr<c10d::Work>& first, std::function<void()> second, c10d::OpType type,
                std::vector<at::Tensor> results)
      : FutureWork(then(*first, std::move(second), std::move(results)), type), first_(first) {}

  std::uint64_t getSequencenumber() const override { return first_->getSequencenumber(); }
  void abort() override { first_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    first_->wait(timeout);
    return FutureWork::wait(timeout);
  }

 private:
  static c10::intrusive_ptr<c10::ivalue::Future> then(c10d::Work& first, std::function<void()> second,
                                                      std::vector<at::Tensor> results) {
    return first.getFuture()->then(
        [second = std::move(second), results = std::move(results),
         threads = at::get_num_threads()](c10::ivalue::Future& arrived) -> c10::IValue {
          arrived.value();                                                     // throws what failed
          if (at::get_num_threads() != threads) at::set_num_threads(threads);  // of Gloo's thread
          second();
          return c10::List<at::Tensor>(results);
        },
        c10::ListType::ofTensors());
  }

  const c10::intrusive_ptr<c10d::Work> first_;
};

}  // namespace fp8::runtime::distributed
