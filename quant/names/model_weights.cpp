// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/model_weights.h"

#include <iterator>
#include <map>

#include "fp8/configs/name_patterns.h"

namespace fp8::quant {
namespace {

using io::Json;
using ModuleIndex = std::size_t;
using Sizes = std::vector<std::int64_t>;
using Numbers = std::set<std::int64_t>;

constexpr std::string_view kBias = "bias";

struct Parameter {
  std::string name;
  Sizes sizes;
  bool floats = false;
  std::uint64_t tensor = 0;

  bool is_bias() const { return name.find(kBias) != std::string::npos; }  // of any spelling: gate_up_proj_bias
};

struct Module {
  std::string name, type, kind, weight, holds;
  std::set<std::string> is;
  bool transposed = false, registered = false, computes = false, adapter = false;
  std::optional<bool> is_transposed;
  std::vector<ModuleIndex> children;
  Numbers numbers;
  std::vector<Parameter> parameters;

  explicit Module(const Json& json)
      : name(json.at("name")),
        type(json.at("class")),
        kind(json.value("kind", "")),
        weight(json.value("weight", "")),
        holds(json.value("holds", "")),
        is(json.value("is", std::set<std::string>())),
        transposed(json.value("transposed", false)),
        registered(json.value("registered", false)),
        computes(json.value("computes", false)),
        adapter(json.value("adapter", false)),
        children(json.value("children", std::vector<ModuleIndex>())),
        numbers(json.value("numbers", Numbers())) {
    if (const auto said = json.value("is_transposed", Json()); said.is_boolean()) is_transposed = said.get<bool>();
    for (const Json& p : json.value("parameters", Json::array()))
      parameters.push_back({p.at(0), p.at(1).get<Sizes>(), p.at(2), p.at(3)});
  }

  /// Its matrices, or stacks of them: no biases, scales and tokens.
  std::vector<Sizes> own(std::size_t dim) const {
    std::vector<Sizes> found;
    for (const Parameter& p : parameters) {
      const bool matrix = p.sizes.size() == dim && std::min(p.sizes[dim - 1], p.sizes[dim - 2]) > 1;
      if (matrix && p.floats && !p.is_bias()) found.push_back(p.sizes);
    }
    return found;
  }

  const Sizes* sizes_of(const char* parameter) const {
    const auto it = std::ranges::find(parameters, parameter, &Parameter::name);
    return it != parameters.end() ? &it->sizes : nullptr;
  }

  /// Stacked experts are [experts, inputs, outputs]: the class says it, or gate and up beside down do.
  bool has_transposed_experts() const {
    if (is_transposed.has_value()) return *is_transposed;
    const Sizes *both = sizes_of("gate_up_proj"), *down = sizes_of("down_proj");
    return both && down && both->size() == 3 && down->size() == 3 && (*both)[2] == 2 * (*down)[1];
  }
};

using Modules = std::vector<Module>;

/// A module and all below it, in the order of PyTorch's modules().
std::vector<ModuleIndex> below(const Modules& modules, ModuleIndex place) {
  std::vector<bool> seen(modules.size());
  std::vector<ModuleIndex> found, open = {place};
  while (!open.empty()) {
    const ModuleIndex next = open.back();
    open.pop_back();
    if (seen[next]) continue;
    seen[next] = true;
    found.push_back(next);
    const auto& children = modules[next].children;
    open.insert(open.end(), children.rbegin(), children.rend());
  }
  return found;
}

/// The modules that hold stacked experts, and the routers beside them.
class Mixtures {
 public:
  explicit Mixtures(const Modules& modules) : modules_(modules) {
    std::map<ModuleIndex, ModuleIndex> parents;
    for (ModuleIndex i = 0; i < modules.size(); ++i) {
      for (const ModuleIndex child : modules[i].children) parents[child] = i;
      if (auto found = experts_of(i); !found.counts.empty()) candidates_.emplace(i, std::move(found));
    }
    for (const auto& [place, found] : candidates_) {
      auto block = parents.find(place);
      for (int level = 0; level < 2 && block != parents.end(); ++level, block = parents.find(block->second))
        if (find_in(block->second, found)) break;
    }
  }

  bool holds_experts(ModuleIndex place) const { return experts_.contains(place); }
  bool is_router(ModuleIndex place) const { return routers_.contains(place); }

 private:
  /// How many experts a module may hold, and how wide their inputs may be.
  struct Experts {
    Numbers counts, widths;
  };

  /// Stacked as [experts, ., .] or [experts * ., .], or one by one in a list that has a forward, or of MoeMatmul.
  /// Whether they are any, a router beside them says.
  Experts experts_of(ModuleIndex place) const {
    const Module& m = modules_[place];
    Experts found;
    const auto add_widths = [&](const Sizes& sizes) { found.widths.insert(sizes.end() - 2, sizes.end()); };
    if (m.is.contains("list") && (m.computes || kinds_of_children(m) == std::set<std::string>{"MoeMatmul"})) {
      found.counts = {static_cast<std::int64_t>(m.children.size())};
      for (const ModuleIndex i : below(modules_, place)) std::ranges::for_each(modules_[i].own(2), add_widths);
      return found;
    }
    if (m.is.contains("convolution") || !m.kind.empty()) return found;
    const auto stacks = m.own(3), rows = m.own(2);
    for (const Sizes& sizes : stacks) found.counts.insert(sizes[0]);
    std::ranges::for_each(stacks, add_widths);
    if (rows.size() < 2) return found;
    for (const Sizes& sizes : rows)
      for (const std::int64_t n : m.numbers)
        if (n > 1 && sizes[0] % n == 0 && m.numbers.contains(sizes[0] / n)) found.counts.insert(n);
    std::ranges::for_each(rows, add_widths);
    return found;
  }

  std::set<std::string> kinds_of_children(const Module& m) const {
    std::set<std::string> kinds;
    for (const ModuleIndex child : m.children)
      if (!modules_[child].kind.empty()) kinds.insert(modules_[child].kind);
    return kinds;
  }

  /// A router reads what experts read, and has a row for each in the end; some have more, for experts that compute
  /// nothing. A list of layers is none.
  bool routes(ModuleIndex place, const Experts& experts) const {
    std::vector<Sizes> matrices;
    if (!modules_[place].computes) return false;
    for (const ModuleIndex i : below(modules_, place))
      std::ranges::copy(modules_[i].own(2), std::back_inserter(matrices));
    return !matrices.empty() && experts.widths.contains(matrices.front()[1]) &&
           std::ranges::any_of(experts.counts, [rows = matrices.back()[0]](std::int64_t n) {
             return 1 < n && n <= rows && rows <= 2 * n;
           });
  }

  /// False: the block has no router of these experts.
  bool find_in(ModuleIndex block, const Experts& experts) {
    bool found = false;
    const auto may_hold = [&](ModuleIndex i) { return candidates_.contains(i); };
    for (const ModuleIndex child : modules_[block].children) {
      if (std::ranges::any_of(below(modules_, child), may_hold) || !routes(child, experts)) continue;
      routers_.insert(child);
      found = true;
    }
    if (found) std::ranges::copy_if(below(modules_, block), std::inserter(experts_, experts_.end()), may_hold);
    return found;
  }

  const Modules& modules_;
  std::map<ModuleIndex, Experts> candidates_;
  std::set<ModuleIndex> experts_, routers_;
};

/// Without what torch.compile puts into names.
std::string plain(std::string name) {
  constexpr std::string_view kCompiled = "_orig_mod.";
  for (auto at = name.find(kCompiled); at != std::string::npos; at = name.find(kCompiled, at))
    name.erase(at, kCompiled.size());
  return name;
}

std::string key_of(const Module& m, const std::string& parameter) {
  return m.name.empty() ? parameter : m.name + "." + parameter;
}

class Finder {
 public:
  explicit Finder(const Modules& modules) : modules_(modules), mixtures_(modules) {
    for (ModuleIndex i = 0; i < modules.size(); ++i) look_at(i);
  }

  /// Leaves what shares its tensor with a table that no list names, or with a matrix that is left.
  void select(const Json& allowlist) {
    const auto words = [&](const char* key) {
      const Json list = allowlist.value(key, Json());
      return list.is_array() ? list : Json::array();
    };
    const auto types = words("types").get<std::set<std::string>>();
    const configs::NamePatterns names(words("names").get<std::vector<std::string>>(), "allowlist.names");
    const auto is_table = [](const Json& w) { return w["kind"].get<std::string>().starts_with("Embedding"); };
    std::map<std::uint64_t, std::string> high;
    for (const Json& w : weights_) {
      const std::string name = w["name"], kind = w["kind"];
      const bool named = types.contains(kind) || names.matches(name);
      if (const auto tensor = tensor_of(w); tensor && is_table(w) && !named) high[*tensor] = name;
    }
    for (const Json& l : left_)
      if (const auto tensor = tensor_of(l)) high[*tensor] = l["name"];
    Json kept = Json::array();
    for (const Json& w : weights_) {
      const auto tensor = tensor_of(w);
      const auto it = tensor && !is_table(w) ? high.find(*tensor) : high.end();
      if (it == high.end() || it->second == w["name"])
        kept.push_back(w);
      else
        leave(w["module"], w["name"], "it shares its weight with " + it->second + ", which reads values");
    }
    weights_ = std::move(kept);
  }

  Json result() { return {{"weights", std::move(weights_)}, {"left", std::move(left_)}}; }

 private:
  /// All below stays in high precision, but for a `base_layer`.
  struct Apart {
    std::string prefix, reason;
  };

  /// Why a module and all below it stays in high precision; empty: it does not.
  std::string apart(ModuleIndex place) {
    const Module& m = modules_[place];
    for (auto it = apart_.rbegin(); it != apart_.rend(); ++it)
      if (m.name.starts_with(it->prefix) && !(m.name + ".").starts_with(it->prefix + "base_layer.")) return it->reason;
    const std::string prefix = key_of(m, "");
    if (m.adapter) apart_.push_back({prefix, "an adapter stays in high precision"});
    if (!mixtures_.is_router(place) || m.registered) return "";
    apart_.push_back(
        {prefix, "a router chooses experts in high precision; fp8.quant.register(" + m.type + ") makes it a Linear"});
    return apart_.back().reason;
  }

  void look_at(ModuleIndex place) {
    const Module& m = modules_[place];
    if (const std::string reason = apart(place); !reason.empty()) {
      for (const Parameter& p : m.parameters)
        if (p.sizes.size() == 2) leave(place, plain(m.name), reason, p.name);
    } else if (m.adapter || m.is.contains("parametrization")) {
      return;
    } else if (m.is.contains("recurrent")) {
      for (const Parameter& p : m.parameters)
        if (p.name.starts_with("weight")) add(place, plain(key_of(m, p.name)), m.type, p.name, false);
    } else if (m.kind.empty()) {
      look_at_unknown(place);
    } else if (m.holds == "parameter" || (m.holds == "tensor" && m.kind == "Linear")) {
      add(place, plain(m.name), m.kind, m.weight, m.transposed);  // a Linear without a parameter is refused by name
    } else if (!m.holds.empty()) {
      leave(place, plain(m.name), "its weight is no parameter of its own: something computes it (a parametrization)");
    }
  }

  /// Of a module that is no product by its class: its stacked experts, and matrices that nothing is known of.
  void look_at_unknown(ModuleIndex place) {
    const Module& m = modules_[place];
    for (const Parameter& p : m.parameters) {
      if (!p.floats || p.is_bias()) continue;
      const std::string name = plain(key_of(m, p.name));
      if (p.sizes.size() == 3 && mixtures_.holds_experts(place))
        add(place, name, "MoeMatmul", p.name, m.has_transposed_experts());
      else if (p.sizes.size() == 2 || (p.sizes.size() == 3 && std::ranges::min(p.sizes) > 1))
        leave(place, name, "class " + m.type + " is not known; fp8.quant.register() makes it so", p.name);
    }
  }

  void add(ModuleIndex place, const std::string& name, const std::string& kind, const std::string& parameter,
           bool transposed) {
    weights_.push_back({{"name", name},
                        {"key", key_of(modules_[place], parameter)},
                        {"kind", kind},
                        {"parameter", parameter},
                        {"transposed", transposed},
                        {"module", place}});
  }

  void leave(ModuleIndex place, const std::string& name, const std::string& reason, const std::string& parameter = "") {
    left_.push_back({{"name", name}, {"reason", reason}, {"parameter", parameter}, {"module", place}});
  }

  std::optional<std::uint64_t> tensor_of(const Json& found) const {
    const auto& own = modules_[found["module"].get<ModuleIndex>()].parameters;
    const auto it = std::ranges::find(own, found["parameter"].get<std::string>(), &Parameter::name);
    return it != own.end() ? std::optional(it->tensor) : std::nullopt;
  }

  const Modules& modules_;
  const Mixtures mixtures_;
  std::vector<Apart> apart_;
  Json weights_ = Json::array(), left_ = Json::array();
};

}  // namespace

Json weights_of_model(const Json& modules, const Json& allowlist) {
  const Modules read(modules.begin(), modules.end());
  for (const Module& m : read)
    for (const ModuleIndex child : m.children)
      if (child >= read.size())
        io::fail<io::Error>("modules: {}: found child {} of {} modules", m.name, child, read.size());
  Finder finder(read);
  if (!allowlist.is_null()) finder.select(allowlist);
  return finder.result();
}

}  // namespace fp8::quant
