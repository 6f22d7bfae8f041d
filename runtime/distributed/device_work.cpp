// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/device_work.h"

#include <exception>
#include <mutex>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/dispatch/operand_devices.h"

namespace fp8::runtime::distributed {
namespace {

using c10::ivalue::Future;

void bump_version(const at::Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();  // those have none
}

/// Gloo's; null for messages from one to one, which have none.
c10::intrusive_ptr<Future> future_of(c10d::Work& running) {
  try {
    return running.getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

/// Gloo's future with the caller's tensors in it. It is completed where somebody has asked for it only: completing it
/// takes hold of them.
class Result {
 public:
  Result(Future& theirs, std::shared_ptr<const Operands> operands)
      : future_(c10::make_intrusive<Future>(theirs.elementType())), operands_(std::move(operands)) {}

  /// By Gloo's thread, or the caller's where all is done.
  void arrives(const Future& theirs) {
    std::unique_lock lock(mutex_);
    theirs_ = &theirs;
    if (asked_) complete(lock);
  }
  c10::intrusive_ptr<Future> ask() {
    std::unique_lock lock(mutex_);
    if (!std::exchange(asked_, true) && theirs_ != nullptr) complete(lock);
    return future_;
  }

 private:
  void complete(std::unique_lock<std::mutex>& lock) {
    lock.unlock();  // completing calls whoever waits
    if (theirs_->hasError())
      future_->setError(theirs_->exception_ptr());
    else
      future_->markCompleted(operands_->original(theirs_->constValue()));
  }

  const c10::intrusive_ptr<Future> future_;
  const std::shared_ptr<const Operands> operands_;
  std::mutex mutex_;
  const Future* theirs_ = nullptr;  // completed; lives as long as its Work, which asks
  bool asked_ = false;
};

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> running, std::shared_ptr<const Operands> operands)
      : Work(-1, running->retrieveOpType()), operands_(std::move(operands)), running_(std::move(running)) {
    theirs_ = future_of(*running_);
    if (theirs_ == nullptr) return;
    result_ = std::make_shared<Result>(*theirs_, operands_);
    theirs_->addCallback([result = result_, operands = operands_](Future& done) {
      operands->bump_versions();
      result->arrives(done);
    });
  }

  bool isCompleted() override { return running_->isCompleted(); }
  bool isSuccess() const override { return running_->isSuccess(); }
  std::exception_ptr exception() const override { return running_->exception(); }
  int sourceRank() const override { return running_->sourceRank(); }
  void synchronize() override { running_->synchronize(); }
  void blockCurrentStream() override { running_->blockCurrentStream(); }
  void abort() override { running_->abort(); }
  float getDuration() const override { return running_->getDuration(); }
  uint64_t getSequencenumber() const override { return running_->getSequencenumber(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = running_->wait(timeout);
    if (theirs_ == nullptr) operands_->bump_versions();
    return done;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> tensors = running_->result();
    for (at::Tensor& t : tensors) t = operands_->original(t);
    return tensors;
  }
  c10::intrusive_ptr<Future> getFuture() override {
    return result_ != nullptr ? result_->ask() : running_->getFuture();
  }

 private:
  std::shared_ptr<const Operands> operands_;  // outlives running_, which a message from one to one may still read
  c10::intrusive_ptr<c10d::Work> running_;
  c10::intrusive_ptr<Future> theirs_;
  std::shared_ptr<Result> result_;
};

}  // namespace

at::Tensor Operands::alias(const at::Tensor& t, bool written) {
  if (!t.defined() || !t.is_hpu()) return t;
  at::Tensor cpu = cpu_alias(t);
  if (c10::isFloat8Type(cpu.scalar_type())) cpu = cpu.view(at::kByte);
  if (written) bump_version(t);
  aliases_.push_back({cpu, decltype(Alias::callers)(t.getIntrusivePtr()), t.tensor_data(), written});
  return cpu;
}

at::Tensor Operands::original(const at::Tensor& alias) const {
  for (const Alias& known : aliases_) {
    if (!known.cpu.is_same(alias)) continue;
    auto callers = known.callers.lock();
    return callers.defined() ? at::Tensor(std::move(callers)) : known.memory;
  }
  return alias;
}

c10::IValue Operands::original(c10::IValue value) const {
  replace_tensors(value, [&](const at::Tensor& t) { return original(t); });
  return value;
}

void Operands::bump_versions() const {
  for (const Alias& known : aliases_)
    if (known.written) bump_version(known.memory);
}

c10::intrusive_ptr<c10d::Work> device_work(c10::intrusive_ptr<c10d::Work> running,
                                           std::shared_ptr<const Operands> operands) {
  return c10::make_intrusive<DeviceWork>(std::move(running), std::move(operands));
}

}  // namespace fp8::runtime::distributed
