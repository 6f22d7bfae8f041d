// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/device_work.h"

#include <exception>
#include <optional>

#include "fp8/runtime/device/block.h"

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

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(c10::intrusive_ptr<c10d::Work> running, std::shared_ptr<const Operands> operands)
      : Work(-1, running->retrieveOpType()), operands_(std::move(operands)), running_(std::move(running)) {
    const auto theirs = future_of(*running_);
    if (theirs == nullptr) return;
    future_ = c10::make_intrusive<Future>(theirs->elementType());
    // Called by Gloo's thread, or here where all is done.
    theirs->addCallback([future = future_, operands = operands_](Future& done) {
      operands->bump_versions();
      if (future.use_count() == 1) return;  // nobody will ask
      if (done.hasError())
        future->setError(done.exception_ptr());
      else
        future->markCompleted(operands->original(done.constValue()));
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
    if (future_ == nullptr) operands_->bump_versions();
    return done;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> tensors = running_->result();
    for (at::Tensor& t : tensors) t = operands_->original(t);
    return tensors;
  }
  c10::intrusive_ptr<Future> getFuture() override { return future_ != nullptr ? future_ : running_->getFuture(); }

 private:
  std::shared_ptr<const Operands> operands_;  // outlives running_, which a message from one to one may still read
  c10::intrusive_ptr<c10d::Work> running_;
  c10::intrusive_ptr<Future> future_;
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

c10::IValue Operands::original(const c10::IValue& value) const {
  if (value.isTensor()) return original(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(original(t));
    return list;
  }
  if (!value.isList()) return value;
  c10::impl::GenericList lists(value.toList().elementType());
  for (const c10::IValue& list : value.toListRef()) lists.push_back(original(list));
  return lists;
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
