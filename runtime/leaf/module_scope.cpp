// SPDX-License-Identifier: Apache-2.0
// Modules of forward and of backward. Autograd numbers the nodes that a thread makes, one after the other: a
// ModuleScope that nodes [first, end) were made in is where they are at home, and RecordFunction says a node's number
// as it runs.
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
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

/// What a backward node's leaves belong to, as long as it runs.
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
  const std::lock_guard lock(nodes().mutex);
  nodes().ranges.clear();
}

}  // namespace detail

using detail::thread_scopes;

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
