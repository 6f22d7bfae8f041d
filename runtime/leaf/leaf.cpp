// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/leaf/leaf.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/function_schema.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sstream>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {
namespace detail {

std::atomic<int> g_listeners{0};
std::atomic<void (*)(Access)> g_finish_work{nullptr};
std::atomic<void (*)()> g_leave_lazy_mode{nullptr};

/// Nodes [first, end) of autograd that this thread made belong to `module`. The newest 65536 ranges are kept.
void remember_nodes(const std::string& module, std::int64_t first, std::int64_t end);
/// While it stands, leaves of a backward node get the module that made the node. Once at a time.
void watch_backward();
void leave_backward();

namespace {

/// The innermost scopes of this thread.
struct ThreadScopes {
  const std::string* module = nullptr;
  const char* phase = nullptr;
  const LeafRecord* leaf = nullptr;  ///< the outermost
  const char* op = nullptr;          ///< of the outermost OpScope
  bool called = false;               ///< that op began outside of the dispatcher's calls, in lazy mode
  bool backward = false;
};

ThreadScopes& thread_scopes() {
  thread_local ThreadScopes scopes;
  return scopes;
}

/// What this thread's outermost OpScope calls, where calls are heard. Apart, as it has a destructor.
std::optional<RunsAtOnce>& at_once() {
  thread_local std::optional<RunsAtOnce> at_once;
  return at_once;
}

struct Listeners {
  std::shared_mutex mutex;
  std::array<LeafListener*, 8> all{};
};

Listeners& listeners() {
  static Listeners& listeners = *new Listeners;  // not destroyed: threads may outlive main()
  return listeners;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::uint64_t thread_id() {
  thread_local const auto id = static_cast<std::uint64_t>(gettid());
  return id;
}

}  // namespace

struct LeafState {
  LeafRecord record;
  std::string op;  // what record.op is, of boxed calls
  std::string module;
  std::vector<LeafTensor> operands;
  std::size_t inputs = 0;  // of the operands; while the inputs are seen, all
  bool gave = false;
  std::int64_t flops = -1;
  std::vector<std::pair<const char*, double>> notes;
  int exceptions = std::uncaught_exceptions();

  void set_spans() {
    record.inputs = std::span(operands).first(gave ? inputs : operands.size());
    record.outputs = std::span(operands).subspan(record.inputs.size());
  }
};

void LeafStateDeleter::operator()(LeafState* state) const {
  if (thread_scopes().leaf == &state->record) thread_scopes().leaf = nullptr;  // its constructor threw
  delete state;
}

/// `call` for each listener, none of which goes meanwhile.
void each_listener(const std::function<void(LeafListener&)>& call) {
  auto& [mutex, all] = listeners();
  const std::shared_lock lock(mutex);
  for (LeafListener* listener : all)
    if (listener != nullptr) call(*listener);
}

}  // namespace detail

using detail::LeafState;
using detail::thread_scopes;

Listening::Listening(LeafListener& listener) : listener_(&listener) {
  auto& [mutex, all] = detail::listeners();
  const std::unique_lock lock(mutex);
  const auto free = std::find(all.begin(), all.end(), nullptr);
  if (free == all.end()) throw std::logic_error("[leaf] eight listen already");
  *free = listener_;
  if (detail::g_listeners.fetch_add(1) == 0) detail::watch_backward();
}

Listening::~Listening() {
  auto& [mutex, all] = detail::listeners();
  const std::unique_lock lock(mutex);
  *std::find(all.begin(), all.end(), listener_) = nullptr;
  if (detail::g_listeners.fetch_sub(1) == 1) detail::leave_backward();
}

bool LeafScope::begin(const char* op) {
  auto& scopes = thread_scopes();
  if (scopes.leaf != nullptr) return false;
  state_.reset(new LeafState);
  LeafRecord& record = state_->record;
  record.op = op;
  if (scopes.module != nullptr) state_->module = *scopes.module;
  record.module = state_->module;
  if (scopes.phase != nullptr) record.phase = scopes.phase;
  record.backward = scopes.backward;
  record.device = -1;
  record.thread = detail::thread_id();
  scopes.leaf = &record;
  return true;
}

LeafScope::LeafScope(Host host) {
  if (!begin(host.op)) return;
  state_->record.host = true;
  start();
}

void LeafScope::begin_boxed(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  if (!begin("")) return;
  state_->op = schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  state_->record.op = state_->op;
  for (const auto& value : arguments) see(value);
  start();
}

void LeafScope::start() {
  state_->set_spans();
  if (state_->record.device < 0 && state_->operands.empty()) state_->record.device = 0;
  state_->record.begin_ns = detail::now_ns();
  detail::each_listener([&](LeafListener& listener) { listener.leaf_begins(state_->record); });
}

void LeafScope::see(const at::Tensor& t) {
  if (!t.defined()) return;
  LeafTensor seen{t.scalar_type(), {}, 0, t.device().is_hpu()};
  if (t.layout() == at::kStrided && !t.is_nested()) {
    seen.sizes.assign(t.sizes().begin(), t.sizes().end());
    seen.bytes = static_cast<std::int64_t>(t.nbytes());
  }
  if (state_->record.device < 0 && t.device().is_hpu()) state_->record.device = t.device().index();
  state_->operands.push_back(std::move(seen));
}

void LeafScope::see(const c10::IValue& value) {
  if (value.isTensor()) {
    see(value.toTensor());
  } else if (value.isTensorList()) {
    see(value.toTensorVector());
  } else if (value.isList()) {  // of optional tensors
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor()) see(item.toTensor());
  }
}

void LeafScope::outputs_follow() {
  if (state_->gave) return;
  state_->inputs = state_->operands.size();
  state_->gave = true;
}

void LeafScope::gives(at::ArrayRef<c10::IValue> results) {
  if (!state_) return;
  outputs_follow();
  for (const auto& value : results) see(value);
}

void LeafScope::flops(std::int64_t count) {
  if (state_) state_->flops = count;
}

void LeafScope::note(const char* name, double value) {
  if (state_) state_->notes.emplace_back(name, value);
}

const LeafRecord* LeafScope::current() { return thread_scopes().leaf; }

bool LeafScope::wants_numbers() const {
  bool wanted = false;
  if (state_) detail::each_listener([&](const LeafListener& listener) { wanted |= listener.wants_numbers(); });
  return wanted;
}

void LeafScope::end() {
  thread_scopes().leaf = nullptr;
  if (std::uncaught_exceptions() > state_->exceptions) return;
  LeafRecord& record = state_->record;
  record.end_ns = detail::now_ns();
  state_->set_spans();
  for (const LeafTensor& t : state_->operands) record.bytes += t.bytes;
  record.flops = state_->flops >= 0 ? state_->flops : detail::flops_of(record.op, record.inputs, record.outputs);
  record.notes = state_->notes;
  detail::each_listener([&](LeafListener& listener) { listener.leaf_ends(record); });
}

bool detail::OpEvent::enter(const char* op) {
  auto& scopes = thread_scopes();
  if (scopes.op != nullptr) return false;
  if (g_finish_work.load(std::memory_order_relaxed) != nullptr && is_heard()) [[unlikely]] {
    at_once().emplace();
    scopes.called = true;
  }
  scopes.op = op;
  return true;
}

void detail::OpEvent::leave() {
  auto& scopes = thread_scopes();
  scopes.op = nullptr;
  if (std::exchange(scopes.called, false)) at_once().reset();
}

const char* OpScope::current() { return thread_scopes().op; }

void detail::OpEvent::record(const char* op, std::initializer_list<c10::IValue> inputs) {
  if (event_.needsInputs())
    event_.before(op, c10::ArrayRef<const c10::IValue>(inputs.begin(), inputs.size()));
  else
    event_.before(op);
}

void host_leaf(const char* op, const std::function<void()>& work) {
  const LeafScope leaf{LeafScope::Host{op}};
  work();
}

PhaseScope::PhaseScope(const char* name) : previous_(std::exchange(thread_scopes().phase, name)) {}
PhaseScope::~PhaseScope() { thread_scopes().phase = previous_; }
std::string_view PhaseScope::current() { return thread_scopes().phase != nullptr ? thread_scopes().phase : ""; }

namespace {

class Trace final : public LeafListener {
 public:
  void leaf_begins(const LeafRecord& leaf) override {
    constexpr std::size_t kLongest = 4096;
    const std::string line = "fp8 trace: " + io::printable(trace_line(leaf), kLongest) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
  }
};

/// For the life of the process, if FP8_TRACE is set and not "0".
[[maybe_unused]] const bool g_traced = [] {
  const char* value = io::environment_value("FP8_TRACE");
  if (value == nullptr || std::string_view(value) == "0") return false;
  new Listening(*new Trace);  // not destroyed: threads may outlive main()
  return true;
}();

}  // namespace

std::string trace_line(const LeafRecord& leaf) {
  std::ostringstream line;
  line << leaf.op;
  for (const LeafTensor& t : leaf.inputs) line << " [" << c10::Join(", ", t.sizes) << "] " << t.type;
  if (!leaf.module.empty()) line << " | " << leaf.module;
  return line.str();
}

// Modules of forward and of backward. Autograd numbers the nodes that a thread makes, one after the other: a
// ModuleScope that nodes [first, end) were made in is where they are at home, and RecordFunction says a node's number
// as it runs.

namespace detail {
namespace {

struct Range {
  std::int64_t first, end;
  const std::string* module;
};

/// Ranges of each thread in the order of their ends: inner ones come before those around them.
struct Nodes {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;  // not forgotten: threads point to them
  std::map<std::uint64_t, std::deque<Range>> ranges;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

Nodes& nodes() {
  static Nodes& nodes = *new Nodes;
  return nodes;
}

constexpr std::size_t kMostRanges = 65536;

const std::string* module_of(std::uint64_t thread, std::int64_t node) {
  auto& all = nodes();
  const std::lock_guard lock(all.mutex);
  const auto found = all.ranges.find(thread);
  if (found == all.ranges.end()) return nullptr;
  const auto& ranges = found->second;
  auto it = std::upper_bound(ranges.begin(), ranges.end(), node,
                             [](std::int64_t value, const Range& range) { return value < range.end; });
  for (; it != ranges.end(); ++it)
    if (it->first <= node) return it->module;
  return nullptr;
}

/// The scopes of a backward node's leaves, as long as it runs.
struct NodeContext : at::ObserverContext {
  explicit NodeContext(ThreadScopes scopes) : before(scopes) {}
  ThreadScopes before;
};

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& node) {
  auto& scopes = thread_scopes();
  auto context = std::make_unique<NodeContext>(scopes);
  scopes.backward = true;
  if (node.seqNr() >= 0)
    if (const std::string* module = module_of(node.forwardThreadId(), node.seqNr())) scopes.module = module;
  return context;
}

void node_ends(const at::RecordFunction&, at::ObserverContext* context) {
  const auto* node = static_cast<const NodeContext*>(context);
  thread_scopes().module = node->before.module;
  thread_scopes().backward = node->before.backward;
}

}  // namespace

void remember_nodes(const std::string& module, std::int64_t first, std::int64_t end) {
  auto& all = nodes();
  const std::lock_guard lock(all.mutex);
  auto& ranges = all.ranges[at::RecordFunction::currentThreadId()];
  if (ranges.size() == kMostRanges) ranges.pop_front();
  ranges.push_back({first, end, &*all.names.insert(module).first});
}

void watch_backward() {
  nodes().callback = at::addGlobalCallback(
      at::RecordFunctionCallback(&node_begins, &node_ends).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

void leave_backward() {
  at::removeCallback(nodes().callback);
  // The ranges of living programs stay: a recording that pauses after forward finds them again in backward.
  constexpr std::size_t kMostThreads = 64;
  const std::lock_guard lock(nodes().mutex);
  if (nodes().ranges.size() > kMostThreads) nodes().ranges.clear();
}

}  // namespace detail

ModuleScope::ModuleScope(const std::string& path, const char* type)
    : previous_(std::exchange(thread_scopes().module, &path)) {
  if (!leaves_heard()) [[likely]]
    return;
  first_node_ = static_cast<std::int64_t>(at::sequence_number::peek());
  bool wanted = false;
  detail::each_listener([&](const LeafListener& listener) { wanted |= listener.wants_modules(); });
  if (!wanted) return;
  event_ = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!event_->isActive()) return;
  std::string name = "[pl][module]" + std::string(type != nullptr ? type : "Module") + ": " + path;
  std::ranges::replace_if(
      name, [](unsigned char c) { return c < 0x20 || c == '"'; }, '_');  // Kineto writes it as it is
  event_->before(name);
}

ModuleScope::~ModuleScope() {
  const std::string* path = std::exchange(thread_scopes().module, previous_);
  if (first_node_ < 0) return;
  const auto end = static_cast<std::int64_t>(at::sequence_number::peek());
  if (end > first_node_) detail::remember_nodes(*path, first_node_, end);
}

std::string_view ModuleScope::current() {
  return thread_scopes().module != nullptr ? std::string_view(*thread_scopes().module) : std::string_view();
}

}  // namespace fp8::runtime
