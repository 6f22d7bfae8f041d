// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/process_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <climits>
#include <cstring>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/distributed/meeting.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::runtime::distributed {
namespace {

using io::kMaxRanks;

/// The value, checked by its rule; nullptr where it is not set.
const char* variable(const char* name) {
  const char* text = io::environment_value(name);
  if (text == nullptr) return nullptr;
  const std::string problem = io::environment_problem(name);
  TORCH_CHECK(problem.empty(), "[process group] ", problem);
  return text;
}

/// 15000 + n mod 10000, of decimal digits or of any other text by its hash.
std::uint16_t port_of(std::string_view job) {
  const std::string_view last = job.substr(job.size() - std::min<std::size_t>(job.size(), 4));
  if (!job.empty() && job.find_first_not_of("0123456789") == std::string_view::npos)
    return static_cast<std::uint16_t>(15000 + io::parse_integer(last, 0, 9999).value());
  io::Fnv hash;
  hash.add(job.data(), job.size());
  return static_cast<std::uint16_t>(15000 + hash.value() % 10000);
}

struct Place {
  std::string host, said_by;
};

/// srun, by its own variables or by PMI's that say the same (srun --mpi=pmi2).
bool is_of_slurm(const io::Launched& process) {
  if (process.rank_variable == "SLURM_PROCID") return true;
  const char *rank = variable("SLURM_PROCID"), *size = variable("SLURM_STEP_NUM_TASKS");
  return process.rank_variable == "PMI_RANK" && rank != nullptr && size != nullptr &&
         rank == std::to_string(process.rank) && size == std::to_string(process.size);
}

/// Without MASTER_ADDR.
std::optional<Place> host_of_launcher(const io::Launched& process) {
  if (is_of_slurm(process)) {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
      const char* list = variable(name);
      if (list == nullptr) continue;
      const auto host = first_host(list);
      TORCH_CHECK(host.has_value(), "[process group] ", name, ": found ", io::in_quotes(list),
                  ", allowed: hosts as Slurm writes them, n[1-3],m7");
      return Place{*host, name};
    }
  }
  for (const auto& [rank_variable, local_size] :
       {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}, {"PMI_RANK", "MPI_LOCALNRANKS"}}) {
    const char* here = process.rank_variable == rank_variable ? variable(local_size) : nullptr;
    if (here != nullptr && std::to_string(process.size) == here) return Place{"127.0.0.1", local_size};
  }
  return std::nullopt;
}

/// Without MASTER_PORT: the variable that names the job, so that two jobs on one machine do not meet.
const char* job_variable(const io::Launched& process) {
  return is_of_slurm(process) ? "SLURM_JOB_ID" : "PMIX_NAMESPACE";
}

void find_place(const io::Launched& process, GroupOptions& options) {
  const std::string because = " (" + process.size_variable + " is " + std::to_string(options.size) +
                              "); all ranks need the same, as in mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500";
  if (const char* host = variable("MASTER_ADDR")) {
    options.host = host;
    options.said_by += ", MASTER_ADDR";
  } else {
    const auto place = host_of_launcher(process);
    TORCH_CHECK(place.has_value(), "[process group] MASTER_ADDR: found none, allowed: the host of rank 0", because);
    options.host = place->host;
    options.said_by += ", " + place->said_by;
  }
  const char* job = nullptr;
  if (const char* port = variable("MASTER_PORT")) {
    options.port = static_cast<std::uint16_t>(io::parse_integer(port, 1, 65535).value());
    options.said_by += ", MASTER_PORT";
  } else if (process.rank_variable != "RANK" && (job = variable(job_variable(process))) != nullptr) {
    options.port = port_of(job);
    options.said_by += std::string(", ") + job_variable(process);
  } else {
    TORCH_CHECK(false, "[process group] MASTER_PORT: found none, allowed: 1 to 65535", because);
  }
}

}  // namespace

std::optional<std::string> first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] == ']') return std::nullopt;
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t end = list.find(']', i);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view numbers = list.substr(i + 1, end - i - 1);
    const std::string_view number = numbers.substr(0, numbers.find_first_of(",-"));
    if (number.empty() || number.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    host += number;
    i = end;
  }
  if (host.empty()) return std::nullopt;
  return host;
}

GroupOptions group_options_from_environment() {
  GroupOptions options;
  std::optional<io::Launched> process;
  try {
    process = io::launched();
  } catch (const io::Error& error) {
    TORCH_CHECK(false, "[process group] ", error.what());
  }
  if (!process.has_value()) return options;
  options.rank = process->rank;
  options.size = process->size;
  options.said_by = process->rank_variable + ", " + process->size_variable;
  if (options.size == 1) return options;
  find_place(*process, options);
  if (const char* secret = variable("FP8_JOB_SECRET")) options.secret = secret;
  if (const char* agent = variable("TORCHELASTIC_USE_AGENT_STORE"))
    options.launcher_serves = *agent == '1' || *agent == 't' || *agent == 'T';
  if (const char* attempt = variable("TORCHELASTIC_RESTART_COUNT"))
    options.attempt = static_cast<int>(io::parse_integer(attempt, 0, INT_MAX).value());
  return options;
}

void check(const GroupOptions& options) {
  TORCH_CHECK(options.size >= 1 && options.size <= kMaxRanks, "[GroupOptions] size: found ", options.size,
              ", allowed: 1 to ", kMaxRanks);
  TORCH_CHECK(options.rank >= 0 && options.rank < options.size, "[GroupOptions] rank: found ", options.rank,
              ", allowed: 0 to ", options.size - 1);
  const auto longest = std::chrono::hours(24 * 30);
  TORCH_CHECK(options.timeout >= std::chrono::milliseconds(1) && options.timeout <= longest,
              "[GroupOptions] timeout: found ", options.timeout.count(), " ms, allowed: 1 ms to 30 days");
  if (options.size == 1) return;
  TORCH_CHECK(options.secret.empty() || options.secret.size() >= 16, "[GroupOptions] secret: found one of ",
              options.secret.size(),
              " characters, allowed: 16 or more (FP8_JOB_SECRET; openssl rand -hex 16 makes one)");
  if (options.file.empty()) {
    TORCH_CHECK(!options.host.empty(), "[GroupOptions] host: found \"\", allowed: a name or address");
    TORCH_CHECK(options.port != 0, "[GroupOptions] port: found 0, allowed: 1 to 65535");
    return;
  }
  const auto folder = std::filesystem::absolute(options.file).parent_path();
  TORCH_CHECK(std::filesystem::is_directory(folder), "[GroupOptions] file: found ", io::in_quotes(options.file),
              ", allowed: a path in a folder that exists");
}

void merge(std::span<double> values, ProcessGroup& group) {
  if (group.size() == 1 || values.empty()) return;
  const at::Tensor bits = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::memcpy(bits.mutable_data_ptr(), values.data(), values.size_bytes());
  group.all_reduce(bits, ReduceOp::sum);
  std::memcpy(values.data(), bits.const_data_ptr(), values.size_bytes());
}

std::vector<double> all_gather(std::span<const double> row, ProcessGroup& group) {
  std::vector<double> rows(row.size() * static_cast<std::size_t>(group.size()));
  std::copy(row.begin(), row.end(), rows.begin() + group.rank() * static_cast<std::ptrdiff_t>(row.size()));
  merge(rows, group);
  return rows;
}

std::string broadcast_text(std::string text, ProcessGroup& group, int root) {
  if (group.size() == 1) return text;
  const at::Tensor length = at::zeros({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  group.broadcast(length, root);
  const at::Tensor bytes = at::empty({length.item<std::int64_t>()}, at::kByte);
  if (group.rank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  group.broadcast(bytes, root);
  text.assign(reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel()));
  return text;
}

std::string from_first(const std::function<std::string()>& f, ProcessGroup& group) {
  std::string said;  // "+what it returned" or "-what it threw"
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      said = "+" + f();
    } catch (const std::exception& e) {
      failure = std::current_exception();
      said = "-" + text_of(e);
    }
  }
  try {
    said = broadcast_text(std::move(said), group);
  } catch (const std::exception&) {
    if (failure == nullptr) throw;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  if (said.starts_with('-')) io::fail<io::Error>("rank 0: {}", said.substr(1));
  return said.substr(1);
}

void on_first(const std::function<void()>& f, ProcessGroup* group) {
  if (group == nullptr || group->size() == 1) return f();
  const auto without_text = [&] {
    f();
    return std::string();
  };
  from_first(without_text, *group);
}

io::Json form_of(const at::Tensor& tensor) {
  return {{"dtype", static_cast<int>(tensor.scalar_type())}, {"sizes", tensor.sizes().vec()}};
}

at::Tensor empty_of_form(const io::Json& form) {
  return at::empty(form.at("sizes").get<std::vector<std::int64_t>>(),
                   static_cast<at::ScalarType>(form.at("dtype").get<int>()));
}

void check_same(const io::Json& values, ProcessGroup& group, const char* where) {
  if (group.size() == 1) return;
  const io::Json of_first = io::parse_json(broadcast_text(values.dump(), group), where);
  const auto own = io::first_difference(values, of_first);
  const std::string difference =
      own.has_value() ? own->path + ": found " + own->was + ", rank 0 has " + own->is : "keys without a value";
  const double differs = values == of_first ? 0 : 1;
  const auto all = all_gather({&differs, 1}, group);
  const auto found = std::find(all.begin(), all.end(), 1.0);
  if (found == all.end()) return;
  const auto rank = static_cast<int>(found - all.begin());
  TORCH_CHECK(false, "[", where, "] rank ", rank, " differs from rank 0: ", broadcast_text(difference, group, rank));
}

at::Tensor reduce(const at::Tensor& tensor, std::string_view op, ProcessGroup& group) {
  const bool mean = op == "mean" || op == "avg", least = op == "min";
  TORCH_CHECK_TYPE(mean || least || op == "sum" || op == "max", "Unsupported ReduceOp ", op,
                   ". Supported ops in HCCL are: sum, min, max");
  const at::NoGradGuard no_grad;
  const bool whole = tensor.scalar_type() == at::kLong;
  // The least is the largest of the negatives; of integers of the complements, which never overflow.
  at::Tensor result = mean && whole ? tensor.to(at::kFloat)
                      : least       ? (whole ? tensor.bitwise_not() : -tensor)
                                    : tensor.detach().clone();
  group.all_reduce(result, least || op == "max" ? ReduceOp::max : ReduceOp::sum);
  if (mean) result.div_(group.size());
  return !least ? result : whole ? result.bitwise_not_() : result.neg_();
}

namespace {

constexpr int kTag = 0;  // one for all: Gloo keeps the order of messages of a tag

[[noreturn]] void fail_transfer(const std::string& call, const std::exception& error, ProcessGroup& group) {
  std::string why = first_line(error);
  if (const std::string gone = group.who_is_gone(); !gone.empty()) why += " (" + gone + ")";
  TORCH_CHECK(false, "[ProcessGroup] rank ", group.rank(), " of ", group.size(), ": ", call, ": ", why);
}

/// "send of 12 elements of BFloat16 to rank 1"
std::string describe_transfer(const char* call, const char* direction, const at::Tensor& t, int other) {
  return io::message("{} of {} elements of {}{}{}", call, t.numel(), c10::toString(t.scalar_type()), direction, other);
}

void check_transfer(const char* call, const at::Tensor& t, int other, const ProcessGroup& group) {
  TORCH_CHECK(t.defined() && (t.is_hpu() || t.is_cpu()) && t.is_contiguous(), "[ProcessGroup] ", call,
              ": expected a contiguous tensor on hpu or cpu, got ",
              t.defined() ? t.toString() : std::string("an undefined one"));
  if (const auto tag = tag_of_memory(t)) tag->check_access(call, t);  // codes would go without their scales
  TORCH_CHECK(other >= 0 && other < group.size() && other != group.rank(), "[ProcessGroup] ", call, ": found rank ",
              other, ", allowed: another of the ", group.size(), " than ", group.rank());
}

}  // namespace

struct Transfer::State {
  c10::intrusive_ptr<c10d::Work> work;  ///< null: there is nothing to send
  at::Tensor tensor;                    ///< its memory is what travels
  std::string call;
  ProcessGroup& group;

  /// start(bytes of the tensor)
  template <class F>
  void begin(const F& start) {
    if (tensor.numel() == 0) return;
    std::vector<at::Tensor> bytes = {cpu_alias(tensor.detach()).view({-1}).view(at::kByte)};
    try {
      work = start(*c10d_group(group)->getBackend(at::kCPU), bytes);
    } catch (const std::exception& error) {
      fail_transfer(call, error, group);
    }
  }
};

Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;

void Transfer::wait() {
  const auto state = std::exchange(state_, nullptr);
  if (state == nullptr || state->work == nullptr) return;
  try {
    state->work->wait();
  } catch (const std::exception& error) {
    fail_transfer(state->call, error, state->group);
  }
}

Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group) {
  check_transfer("send", tensor, to, group);
  auto state = std::make_unique<Transfer::State>(
      Transfer::State{nullptr, tensor, describe_transfer("send", " to rank ", tensor, to), group});
  state->begin([&](c10d::Backend& backend, std::vector<at::Tensor>& bytes) { return backend.send(bytes, to, kTag); });
  return Transfer(std::move(state));
}

Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group) {
  check_transfer("receive", tensor, from, group);
  tensor.unsafeGetTensorImpl()->bump_version();
  auto state = std::make_unique<Transfer::State>(
      Transfer::State{nullptr, tensor, describe_transfer("receive", " from rank ", tensor, from), group});
  state->begin([&](c10d::Backend& backend, std::vector<at::Tensor>& bytes) { return backend.recv(bytes, from, kTag); });
  return Transfer(std::move(state));
}

void send_text(const std::string& text, int to, ProcessGroup& group) {
  const at::Tensor length = at::empty({1}, at::kLong),
                   bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  send(length, to, group).wait();
  send(bytes, to, group).wait();
}

std::string receive_text(int from, ProcessGroup& group) {
  const at::Tensor length = at::empty({1}, at::kLong);
  receive(length, from, group).wait();
  const at::Tensor bytes = at::empty({*length.const_data_ptr<std::int64_t>()}, at::kByte);
  receive(bytes, from, group).wait();
  return {reinterpret_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

}  // namespace fp8::runtime::distributed
