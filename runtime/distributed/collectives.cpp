// SPDX-License-Identifier: Apache-2.0
// c10d's operators on hpu tensors: one boxed kernel for all of them, no copies.
//
//   c10d::allreduce_(Tensor[] tensors, ProcessGroup, ReduceOp, ...) -> (Tensor[], Work)      at HPU
//     tensors, Tensor[], Tensor[][] -> CPU aliases -> the same operator at CPU: the group's CPU backend
//     Work -> DeviceWork; what else comes back is the first argument, so the caller's own tensors
//
// The first argument is what a call writes, if it writes. fp8 tensors travel as the bytes that they are; only codes
// whose scales would stay behind are refused (BlockTag::check_access), and sums of codes, which would be sums of bytes.
// Sums, means, minima and maxima of the other dtypes are Gloo's own, but for those of a reduce-scatter and of what
// ranks of one machine read of each other (peer_memory.h).
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstring>
#include <exception>
#include <iterator>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/distributed/following_work.h"
#include "fp8/runtime/distributed/peer_memory.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime::distributed {
namespace {

// A collective that is under way on aliases of hpu tensors.
//
//   caller --Work--> DeviceWork --> Gloo's Work --> CPU aliases, which own no memory
//                        |              \-- its future, while it runs --> Operands
//                        \-- Operands: the memory of the hpu tensors
//
// The memory lives until the messages are through, also when the caller drops Work and tensors at once: then Gloo's
// future is what holds it. It holds the memory, not the caller's tensors: Gloo's thread must not be the one that drops
// the last of a tensor that Python knows, which at exit ends the process. result() and the future, where Reducer looks,
// have the caller's tensors again.

using c10::ivalue::Future;

void bump_version(const at::Tensor& t) {
  if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();  // those have none
}

/// The tensors of one call.
class Operands {
 public:
  /// t on hpu: a CPU tensor over its memory; fp8 as bytes. Others as they are. written: by the call, so its version is
  /// another from now on, and once more when the messages are through.
  at::Tensor alias(const at::Tensor& t, bool written) {
    if (!t.defined() || !t.is_hpu()) return t;
    at::Tensor cpu = cpu_alias(t);
    if (c10::isFloat8Type(cpu.scalar_type())) cpu = cpu.view(at::kByte);
    if (written) bump_version(t);
    aliases_.push_back({cpu, decltype(Alias::callers)(t.getIntrusivePtr()), t.tensor_data(), written});
    return cpu;
  }

  /// The hpu tensor whose alias this is, or another over its memory where the caller has dropped it; others as they
  /// are.
  at::Tensor original(const at::Tensor& alias) const {
    for (const Alias& known : aliases_) {
      if (!known.cpu.is_same(alias)) continue;
      auto callers = known.callers.lock();
      return callers.defined() ? at::Tensor(std::move(callers)) : known.memory;
    }
    return alias;
  }
  /// original() of each tensor in a list and in a list of lists.
  c10::IValue original(c10::IValue value) const {
    replace_tensors(value, [&](const at::Tensor& t) { return original(t); });
    return value;
  }

  /// Of the written ones.
  void bump_versions() const {
    for (const Alias& known : aliases_)
      if (known.written) bump_version(known.memory);
  }

 private:
  struct Alias {
    at::Tensor cpu;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> callers;
    at::Tensor memory;  ///< of the same sizes, strides and version
    bool written;
  };
  std::vector<Alias> aliases_;
};

/// Gloo's; null for messages from one to one, which have none.
c10::intrusive_ptr<Future> future_of(c10d::Work& running) {
  try {
    return running.getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

/// Gloo's future with the caller's tensors in it. It is completed only when it was asked for: completing it
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
    lock.unlock();  // completing calls its waiting callbacks
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

// Gloo's reduce-scatter is an all-reduce of the whole, of which each rank keeps its part: twice the bytes.
//
//   input of each rank   [part for rank 0 | part for rank 1 | ...]
//   alltoall_base        [this rank's part of rank 0's | of rank 1's | ...]
//   output               those, added in the order of the ranks; AVG: divided by their number

/// parts: [ranks, n]; output: [n].
void reduce_parts(const at::Tensor& parts, c10d::ReduceOp::RedOpType op, at::Tensor output) {
  const at::NoGradGuard no_grad;
  at::Tensor so_far = parts[0];
  for (std::int64_t rank = 1; rank < parts.size(0); so_far = output, ++rank) combine(op, output, so_far, parts[rank]);
  if (op == c10d::ReduceOp::AVG) output.div_(parts.size(0));
}

/// By Gloo's messages; null where Gloo does it, of one rank, of integers and of sizes that it refuses: what decides is
/// the same on all ranks.
c10::intrusive_ptr<c10d::Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                              c10d::ReduceOp::RedOpType op, c10d::ProcessGroup& group,
                                              std::chrono::milliseconds timeout) {
  const std::int64_t ranks = group.getSize();
  if (ranks == 1 || output.numel() == 0 || !output.is_floating_point() || input.scalar_type() != output.scalar_type() ||
      input.numel() != ranks * output.numel())
    return nullptr;
  at::Tensor sent = input.contiguous().view({-1}).view(at::kByte), received = at::empty_like(sent);
  std::vector<std::int64_t> equal;
  c10d::AllToAllOptions options;
  options.timeout = timeout;
  auto parts = group.getBackend(at::kCPU)->alltoall_base(received, sent, equal, equal, options);
  const auto reduce = [output, received, ranks, sent, op] {
    const at::Tensor values = received.view(output.scalar_type()).view({ranks, -1});
    if (output.is_contiguous()) return reduce_parts(values, op, output.view({-1}));
    const at::Tensor dense = at::empty({output.numel()}, output.options());
    reduce_parts(values, op, dense);
    output.copy_(dense.view(output.sizes()));
  };
  return c10::make_intrusive<FollowingWork>(std::move(parts), reduce, c10d::OpType::_REDUCE_SCATTER_BASE,
                                            std::vector<at::Tensor>{output});
}

/// A letter for each argument of a collective: T a tensor, L a list of them, G the group, R how to reduce, else "?".
/// They end with whether the caller waits, and how long: "??".
std::string letters_of(const c10::FunctionSchema& schema) {
  static const auto group = c10::getCustomClassType<c10::intrusive_ptr<c10d::ProcessGroup>>(),
                    reduce_op = c10::getCustomClassType<c10::intrusive_ptr<c10d::ReduceOp>>();
  std::string letters;
  for (const c10::Argument& argument : schema.arguments()) {
    const c10::Type& type = *argument.type();
    letters += type == *c10::TensorType::get()                     ? 'T'
               : type == *c10::ListType::ofTensors()               ? 'L'
               : type == static_cast<const c10::Type&>(*group)     ? 'G'
               : type == static_cast<const c10::Type&>(*reduce_op) ? 'R'
                                                                   : '?';
  }
  return letters;
}

/// The collectives that are not Gloo's own, of CPU tensors, told by what they are given; null: it is Gloo's.
c10::intrusive_ptr<c10d::Work> own_collective(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  const std::string letters = letters_of(schema);
  const bool gathers = letters == "TTG??", scatters = letters == "TTGR??", reduces = letters == "LGR???";
  if (!gathers && !scatters && !reduces) return nullptr;
  const std::chrono::milliseconds timeout(arguments.back().toInt());
  if (reduces) {  // the argument before the last two is of sparse tensors
    const auto tensors = arguments[0].toTensorVector();
    if (tensors.size() != 1 || tensors[0].layout() != at::kStrided) return nullptr;
    return all_reduce_of_peers(tensors[0], arguments[2].toCustomClass<c10d::ReduceOp>()->op_,
                               arguments[1].toCustomClass<c10d::ProcessGroup>(), timeout);
  }
  const at::Tensor output = arguments[0].toTensor(), input = arguments[1].toTensor();
  const auto group = arguments[2].toCustomClass<c10d::ProcessGroup>();
  if (gathers) return all_gather_of_peers(output, input, group, timeout);
  const auto op = arguments[3].toCustomClass<c10d::ReduceOp>()->op_;
  auto work = reduce_scatter_of_peers(output, input, op, group, timeout);
  return work != nullptr ? work : reduce_scatter(output, input, op, *group, timeout);
}

/// The operators that write their first argument; those that write nothing.
const auto& kWriting = *new auto(io::words(R"(
allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_ allreduce_ allreduce_coalesced_
alltoall_ alltoall_base_ broadcast_ gather_ recv_ recv_any_source_ reduce_ reduce_scatter_ _reduce_scatter_base_
reduce_scatter_tensor_coalesced_ scatter_)"));  // threads may outlive main()
const auto kReading = io::words("barrier check_for_nan monitored_barrier_ send");

bool writes_first_argument(std::string_view op) {  // "c10d::send"
  return std::ranges::find(kWriting, op.substr(6)) != kWriting.end();
}

std::optional<c10d::ReduceOp> reduce_op_of(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  const auto index = schema.argumentIndexWithName("reduce_op");
  if (!index.has_value()) return std::nullopt;
  return *arguments[*index].toCustomClass<c10d::ReduceOp>();
}

/// HCCL's.
void check_reduce_op(const c10d::ReduceOp& op) {
  constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  using Op = c10d::ReduceOp;
  if (op.op_ == Op::SUM || op.op_ == Op::AVG || op.op_ == Op::MIN || op.op_ == Op::MAX) return;
  TORCH_CHECK_TYPE(false, "Unsupported ReduceOp ", op.op_ < std::size(kNames) ? kNames[op.op_] : "UNUSED",
                   ". Supported ops in HCCL are: sum, min, max");
}

/// Refuses operands whose meaning the call would lose.
void check_operands(const std::string& op, bool reduces, at::ArrayRef<c10::IValue> arguments) {
  std::optional<at::ScalarType> first;
  const auto check = [&](const at::Tensor& t) {
    if (!t.defined()) return;
    if (const Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(op, t);
    const auto type = t.scalar_type();
    TORCH_CHECK(!c10::isFloat8Type(type) || !reduces, "[", op, "] found a tensor of ", type,
                " codes, of which no sum, minimum or maximum is taken; allowed: Float, BFloat16, Half, Double, integer",
                " types, as .to() or hpu::cast_from_fp8 gives them");
    if (!first.has_value()) first = type;
    const bool codes = c10::isFloat8Type(type) || c10::isFloat8Type(*first);
    TORCH_CHECK(type == *first || !codes, "[", op, "] found tensors of ", *first, " and of ", type,
                ", allowed: codes of one format, or none");
  };
  for (const c10::IValue& argument : arguments) for_each_tensor(argument, check);
}

/// What check_operands() says, "": nothing.
std::string refusal_of(const std::string& op, bool reduces, at::ArrayRef<c10::IValue> arguments) {
  try {
    check_operands(op, reduces, arguments);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

bool has_codes(at::ArrayRef<c10::IValue> arguments) {
  bool found = false;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument,
                    [&](const at::Tensor& t) { found = found || (t.defined() && c10::isFloat8Type(t.scalar_type())); });
  return found;
}

/// Of a call that has a root, in which that rank alone may have what is refused: the others would wait for it. All
/// ranks tell the others what they refuse, and all throw the first.
void check_operands_of_all(const c10::FunctionSchema& schema, bool reduces, at::ArrayRef<c10::IValue> arguments) {
  constexpr std::int64_t kMost = 512;
  const auto group_at = schema.argumentIndexWithName("process_group");
  const auto group = arguments.at(group_at.value()).toCustomClass<c10d::ProcessGroup>();
  const auto backend = group->getBackend(at::kCPU);
  if (group->getSize() == 1 || !is_gloo(*backend)) return check_operands(schema.name(), reduces, arguments);
  const std::string mine = refusal_of(schema.name(), reduces, arguments);
  const at::Tensor said = at::zeros({kMost}, at::kByte), all = at::empty({group->getSize(), kMost}, at::kByte);
  std::memcpy(said.mutable_data_ptr(), mine.data(), std::min<std::size_t>(mine.size(), kMost - 1));
  at::Tensor heard = all.view({-1});
  at::Tensor say = said;
  c10d::AllgatherOptions options;
  options.timeout = std::chrono::milliseconds(arguments.back().toInt());
  {
    const WithoutPython begun;
    backend->_allgather_base(heard, say, options)->wait();
  }
  TORCH_CHECK(mine.empty(), mine);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    const auto* text = reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>()) + rank * kMost;
    TORCH_CHECK(*text == 0, "rank ", rank, " of ", group->getSize(), ": ", text);
  }
}

void collective(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& name = schema.name();
  const std::size_t count = schema.arguments().size(), first = stack->size() - count;
  const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(first);
  const LeafScope leaf(schema, arguments);
  const auto reduce_op = reduce_op_of(schema, arguments);
  if (reduce_op.has_value()) check_reduce_op(*reduce_op);
  if (schema.argumentIndexWithName("root_rank").has_value() && has_codes(arguments))
    check_operands_of_all(schema, reduce_op.has_value(), arguments);
  else
    check_operands(name, reduce_op.has_value(), arguments);

  const auto operands = std::make_shared<Operands>();
  const c10::IValue result = arguments[0];
  bool written = writes_first_argument(name);
  for (std::size_t i = 0; i < count; ++i, written = false)
    replace_tensors((*stack)[first + i], [&](const at::Tensor& t) { return operands->alias(t, written); });
  const c10::impl::ExcludeDispatchKeyGuard below(kAboveAliases);
  const WithoutPython begun;
  if (auto own = own_collective(schema, at::ArrayRef<c10::IValue>(*stack).slice(first)); own != nullptr) {
    torch::jit::drop(*stack, count);
    torch::jit::push(*stack, result, std::move(own));
  } else {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }

  const std::size_t results = schema.returns().size();
  if (results == 0) return;
  c10::IValue& work = stack->back();
  work = c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<DeviceWork>(work.toCustomClass<c10d::Work>(), operands));
  if (results == 2) (*stack)[stack->size() - 2] = result;
}

FP8_LIBRARY_IMPL(c10d, HPU, m) {
  for (const auto& names : {kWriting, kReading})
    for (const std::string& name : names)
      m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&collective>());
}

}  // namespace
}  // namespace fp8::runtime::distributed
