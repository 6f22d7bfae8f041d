// SPDX-License-Identifier: Apache-2.0
// One entry per op name that is or was in a list, with its rule; one registered kernel per overload of it, which looks
// at its entry on every call. So new lists are a few atomic stores, and no kernel is ever taken out of the dispatcher
// while another thread may be in it.
#include "fp8/runtime/intercept/autocast_rules.h"

#include <map>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/intercept/intercept.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime::autocast {
namespace {

using Arguments = at::ArrayRef<c10::IValue>;

constexpr std::string_view kFirstOnly[] = {"layer_norm", "group_norm", "instance_norm", "batch_norm"};

/// Composites that hand their weights on to an intercepted op as they are: those must arrive uncast.
constexpr std::string_view kHandOn[] = {"lstm",     "gru",           "rnn_tanh",      "rnn_relu", "lstm_cell",
                                        "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "einsum",   "tensordot"};

/// Ops that a cast itself runs, and ops whose result's dtype is the caller's wish: casting their arguments would never
/// end, or undo what was asked for. Not in the catalogue, so no list can name them.
constexpr std::string_view kCasts[] = {
    "to", "_to_copy", "copy", "type_as", "empty_like", "_autocast_to_full_precision", "_autocast_to_reduced_precision"};

template <std::size_t N>
bool among(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

/// The forms in which nn::Linear calls its weight: addmm(bias, x, w.t()) and matmul(x, w.t()).
enum class Form : std::uint8_t { other, addmm, matmul };

Form form_of(std::string_view name, std::string_view overload) {
  if (!overload.empty()) return Form::other;
  return name == "addmm" ? Form::addmm : name == "matmul" ? Form::matmul : Form::other;
}

struct Entry {
  std::atomic<Rule> rule{Rule::none};
  std::atomic<Rule> linear_rule{Rule::none};  ///< of calls in nn::Linear's form, where `rule` is none
  bool registered = false;
};

bool is_transposed_matrix(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& w = value.toTensor();
  return w.dim() == 2 && w.stride(0) == 1 && w.stride(1) >= w.size(0);
}

bool is_linear(Form form, Arguments arguments) {
  if (form == Form::matmul) return arguments[0].toTensor().dim() > 0 && is_transposed_matrix(arguments[1]);
  return arguments[0].toTensor().dim() == 1 && is_transposed_matrix(arguments[2]) && arguments[3].toScalar().equal(1) &&
         arguments[4].toScalar().equal(1);
}

bool is_castable(const at::Tensor& t) {
  if (!t.defined() || !t.is_hpu()) return false;
  const auto dtype = t.scalar_type();
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

/// f(tensor) for each tensor of the arguments.
template <typename F>
void for_each_tensor(Arguments arguments, F&& f) {
  for (const c10::IValue& value : arguments) runtime::for_each_tensor(value, f);
}

bool any_tagged(Arguments arguments) {
  bool found = false;
  for_each_tensor(arguments, [&](const at::Tensor& t) { found = found || (t.defined() && find_tag(t) != nullptr); });
  return found;
}

/// The widest of the castable; float32 for float16 beside bfloat16.
std::optional<at::ScalarType> widest(Arguments arguments) {
  std::optional<at::ScalarType> widest;
  for_each_tensor(arguments, [&](const at::Tensor& t) {
    if (is_castable(t)) widest = widest.value_or(t.scalar_type()) == t.scalar_type() ? t.scalar_type() : at::kFloat;
  });
  return widest;
}

/// For a call within a region.
std::optional<CallCast> within_region(Rule rule, Arguments arguments) {
  const at::ScalarType region = autocast_hpu_dtype();
  switch (rule) {
    case Rule::none: return std::nullopt;
    case Rule::lower: return CallCast{region, false, region};
    case Rule::lower_first: return CallCast{region, true, region};
    case Rule::fp32: return CallCast{at::kFloat, false, at::kFloat};
    case Rule::promote: break;
  }
  const auto to = widest(arguments);
  return to.has_value() ? std::optional(CallCast{*to, false, region}) : std::nullopt;
}

/// The cast of a listed op's call.
std::optional<CallCast> cast_by(const Entry& entry, Form form, Arguments arguments) {
  Rule rule = entry.rule.load(std::memory_order_relaxed);
  if (rule == Rule::none && form != Form::other) {
    rule = entry.linear_rule.load(std::memory_order_relaxed);
    if (rule != Rule::none && !is_linear(form, arguments)) rule = Rule::none;
  }
  return within_region(rule, arguments);
}

/// The registered kernel of one overload.
class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(const Entry& entry, const std::string& name, const std::string& overload)
      : entry_(entry),
        form_(form_of(name, overload)),
        intercepted_(is_intercepted("aten::" + name, overload)),
        hands_on_(among(kHandOn, name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::DispatchKeySet below = below_autocast(keys);
    const std::size_t count = op.schema().arguments().size();
    const Arguments arguments = Arguments(*stack).slice(stack->size() - count);
    const auto cast = cast_by(entry_, form_, arguments);
    const bool uncast =
        intercepted_ ? !interception_paused() && meets_tagged(arguments) : hands_on_ && any_tagged(arguments);
    if (uncast || !cast.has_value()) return op.redispatchBoxed(below, stack);
    cast_arguments(*cast, stack->data() + (stack->size() - count), count);
    const InsideOp inside(cast->region);
    op.redispatchBoxed(below, stack);
  }

 private:
  const Entry& entry_;
  Form form_;
  bool intercepted_, hands_on_;
};

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return innermost_kind(*argument.type()) == c10::TypeKind::TensorType;
  });
}

/// The ATen ops that can be in a list, by name without "aten::".
using Catalogue = std::map<std::string, std::vector<c10::OperatorHandle>, std::less<>>;

Catalogue make_catalogue() {
  Catalogue catalogue;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    constexpr std::string_view kAten = "aten::";
    if (!name.name.starts_with(kAten) || name.name.back() == '_' || name.name.find("backward") != std::string::npos)
      continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || op->schema().is_mutable() || !takes_tensors(op->schema())) continue;
    const std::string short_name = name.name.substr(kAten.size());
    if (!among(kCasts, short_name)) catalogue[short_name].push_back(*op);
  }
  return catalogue;
}

/// A wrong file may hold any number of unknown names.
constexpr std::size_t kMostMessages = 10;

std::vector<std::string> unknown_names(const AutocastLists& lists, const Catalogue& catalogue) {
  std::vector<std::string> unknown;
  std::vector<std::string> known;
  std::size_t more = 0;
  const auto check = [&](const std::vector<std::string>& names, const std::string& list) {
    for (const std::string& name : names) {
      if (is_python_name(name) || catalogue.count(name) != 0) continue;
      if (unknown.size() == kMostMessages) {
        ++more;
        continue;
      }
      if (among(kCasts, name)) {
        unknown.push_back(
            "autocast list " + list + ": found '" + name +
            "', which casts run themselves or whose result's dtype the caller asks for; it is never cast");
        continue;
      }
      if (known.empty())
        for (const auto& [op, overloads] : catalogue) known.push_back(op);
      unknown.push_back("autocast list " + list + ": found '" + printable(name) +
                        "', no op that can be cast; nearest: '" + io::closest(name, known) + "'");
    }
  };
  check(lists.lower, "lower (" + lists.lower_from + ")");
  check(lists.fp32, "fp32 (" + lists.fp32_from + ")");
  check(lists.promote, "promote");
  if (more > 0) unknown.push_back("autocast lists: " + std::to_string(more) + " more names are no ops");
  return unknown;
}

class Registry {
 public:
  std::vector<std::string> put(AutocastLists lists) {
    const std::unique_lock lock(mutex_);
    std::vector<std::string> unknown = unknown_names(lists, catalogue_);
    std::map<std::string, Rule, std::less<>> rules;
    for (const auto& name : lists.lower) rules.emplace(name, among(kFirstOnly, name) ? Rule::lower_first : Rule::lower);
    for (const auto& name : lists.fp32) rules.emplace(name, Rule::fp32);  // emplace: the first list wins
    for (const auto& name : lists.promote) rules.emplace(name, Rule::promote);
    const auto linear = rules.find("linear");
    const Rule linear_rule = linear != rules.end() ? linear->second : Rule::none;
    for (const char* name : {"addmm", "matmul"}) {
      entries_[name].linear_rule.store(linear_rule);
      if (linear_rule != Rule::none) add_kernels(name);
    }
    for (auto& [name, entry] : entries_)
      if (rules.count(name) == 0) entry.rule.store(Rule::none);
    for (const auto& [name, rule] : rules) {
      if (catalogue_.count(name) == 0) continue;
      entries_[name].rule.store(rule);
      add_kernels(name);
    }
    lists_ = std::move(lists);
    return unknown;
  }

  AutocastLists lists() const {
    const std::shared_lock lock(mutex_);
    return lists_;
  }
  std::vector<std::string> check(const AutocastLists& lists) const { return unknown_names(lists, catalogue_); }

  /// Null: never listed. Entries stay where they are.
  const Entry* find(std::string_view name) const {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(name);
    return found != entries_.end() ? &found->second : nullptr;
  }

 private:
  void add_kernels(const std::string& name) {
    Entry& entry = entries_.at(name);
    if (entry.registered) return;
    for (const auto& op : catalogue_.at(name)) {
      add_kernel(
          op.operator_name(), c10::DispatchKey::AutocastHPU,
          c10::BoxedKernel::makeFromFunctor(std::make_unique<Kernel>(entry, name, op.operator_name().overload_name)));
    }
    entry.registered = true;
  }

  mutable std::shared_mutex mutex_;
  const Catalogue catalogue_ = make_catalogue();
  std::map<std::string, Entry, std::less<>> entries_;
  AutocastLists lists_;
};

Registry& registry() {
  static Registry& registry = (require_registered(), *new Registry);  // never destroyed, as what it registers
  return registry;
}

/// The environment's lists, when the library is loaded.
[[maybe_unused]] const bool g_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&registry))) return false;
  std::vector<std::string> warnings;
  const auto unknown = registry().put(AutocastLists::from_environment(warnings));
  warnings.insert(warnings.end(), unknown.begin(), unknown.end());
  for (const auto& warning : warnings) std::fprintf(stderr, "fp8: warning: %s\n", warning.c_str());
  return true;
}();

/// The arguments of a normalization beside its first: kernels take tensors of the input's dtype and float32, so
/// weights of the other 16-bit dtype (a float16 model in a bfloat16 region) become float32. Running statistics that the
/// call updates must stay the caller's own.
///
///   batch_norm, instance_norm   input, weight, bias, running_mean, running_var, bool updates, ...
///   layer_norm, group_norm      input, shape or groups, weight, bias, float eps, ...
void widen_rest(at::ScalarType first, c10::IValue* arguments, std::size_t count) {
  const bool statistics = count > 5 && !arguments[4].isDouble() && arguments[5].isBool() && arguments[5].toBool();
  for (std::size_t i = 1; i < count; ++i) {
    if (!arguments[i].isTensor() || (statistics && i >= 3)) continue;
    const at::Tensor& t = arguments[i].toTensor();
    if (is_castable(t) && t.scalar_type() != first) arguments[i] = t.to(at::kFloat);
  }
}

at::Tensor cast_tensor(const at::Tensor& t, at::ScalarType to) {
  return is_castable(t) && t.scalar_type() != to ? t.to(to) : t;
}

}  // namespace

std::vector<std::string> set_lists(AutocastLists lists) { return registry().put(std::move(lists)); }
AutocastLists lists() { return registry().lists(); }
std::vector<std::string> check_lists(const AutocastLists& lists) { return registry().check(lists); }

std::optional<CallCast> cast_of_call(const c10::OperatorHandle& op, Arguments arguments) {
  if (!is_autocast_hpu_enabled()) return std::nullopt;
  const std::string_view name = std::string_view(op.schema().name()).substr(std::string_view("aten::").size());
  const Entry* entry = registry().find(name);
  return entry != nullptr ? cast_by(*entry, form_of(name, op.schema().overload_name()), arguments) : std::nullopt;
}

std::optional<CallCast> cast_by_rule(Rule rule, Arguments arguments) {
  return is_autocast_hpu_enabled() ? within_region(rule, arguments) : std::nullopt;
}

void cast_arguments(const CallCast& cast, c10::IValue* arguments, std::size_t count) {
  const InsideOp inside(cast.region);  // a cast is never cast
  const auto to = [&](const at::Tensor& t) { return cast_tensor(t, cast.to); };
  for (c10::IValue& value : std::span(arguments, cast.first_only ? std::min<std::size_t>(count, 1) : count)) {
    if (!value.isTensor())
      replace_tensors(value, to);
    else if (const at::Tensor& t = value.toTensor(); is_castable(t) && t.scalar_type() != cast.to)
      value = t.to(cast.to);
  }
  if (cast.first_only && count > 0 && arguments[0].isTensor() && is_castable(arguments[0].toTensor()))
    widen_rest(cast.to, arguments, count);
}

at::Tensor cast_result(const std::optional<CallCast>& cast, const at::Tensor& result) {
  return cast.has_value() ? cast_tensor(result, cast->to) : result;
}

std::vector<std::string> set_given_lists(const std::optional<std::vector<std::string>>& lower,
                                         const std::optional<std::vector<std::string>>& fp32) {
  AutocastLists all = lists();
  if (lower.has_value()) all.lower = *lower, all.lower_from = "set_autocast_lists()";
  if (fp32.has_value()) all.fp32 = *fp32, all.fp32_from = "set_autocast_lists()";
  return set_lists(std::move(all));
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def(torch::schema("set_autocast_lists(str[]? lower=None, str[]? fp32=None) -> str[]",
                      c10::AliasAnalysisKind::CONSERVATIVE),
        &set_given_lists);
}

// The lists of autocast in RuntimeFlags: set_lists() overrides the variables that name their files.

namespace {

template <auto list>
std::optional<io::FlagSetting> other_than_the_environments() {
  std::vector<std::string> warnings;
  const std::vector<std::string> names = lists().*list;
  if (names == AutocastLists::from_environment(warnings).*list) return std::nullopt;
  return io::FlagSetting{io::joined_first(names), io::FlagSource::call, "set_lists()"};
}

[[maybe_unused]] const io::FlagOwner g_list_flags[] = {
    {"PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", other_than_the_environments<&AutocastLists::lower>},
    {"LOWER_LIST", other_than_the_environments<&AutocastLists::lower>},
    {"PT_HPU_AUTOCAST_FP32_OPS_LIST", other_than_the_environments<&AutocastLists::fp32>},
    {"FP32_LIST", other_than_the_environments<&AutocastLists::fp32>}};

}  // namespace
}  // namespace fp8::runtime::autocast
