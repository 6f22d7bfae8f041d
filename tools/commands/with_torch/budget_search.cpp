// SPDX-License-Identifier: Apache-2.0
// meet_budget(): the search.

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "fp8/quant/model/damage_probe.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/tools/commands/evaluate/scoring.h"
#include "fp8/tools/commands/quantize/budget.h"

namespace fp8::commands {
namespace {

/// Reading the model once per unit is worth it up to this many bytes; beyond, the probes' SQNR ranks the units.
constexpr std::uint64_t kMaxReadBytes = std::uint64_t{64} << 30;
constexpr std::int64_t kRankingChunks = 8;

/// Modules that are kept or quantized together.
struct Unit {
  std::string name;
  std::vector<std::string> modules;
  double noise = 0;              ///< noise to signal, the largest of its modules
  double kl = 0;                 ///< measured with this unit alone in fp8; 0 when ranked by noise
  std::int64_t bytes_saved = 0;  ///< by its being in fp8
  double sqnr_db() const { return -10.0 * std::log10(noise); }
};

/// The bytes that fp8 saves of a weight: its bytes in the model's dtype less codes and scales.
std::int64_t bytes_saved(const at::Tensor& weight, const quant::Scheme& scheme) {
  const auto grid = weight.dim() == 2 ? quant::scale_grid(scheme, weight.size(0), weight.size(1)).size() : 1;
  return static_cast<std::int64_t>(weight.nbytes()) - weight.numel() - 4 * grid;
}

/// The group that a checkpoint has in fp8 as a whole or not at all; "": the module alone. In memory experts stand below
/// a node, "experts.moe_op.w13_list.3".
std::string group_of(const quant::ModelNames& names, const std::string& module) {
  const std::string experts = ".experts.";
  const auto at = module.find(experts);
  return at == std::string::npos ? names.product_group_of(module) : module.substr(0, at + experts.size() - 1);
}

std::vector<Unit> units_of(const std::vector<quant::ModuleDamage>& damage, const quant::ModelNames& names,
                           const std::vector<measure::WeightModule>& modules, const quant::Plan& plan) {
  std::vector<Unit> units;
  for (const auto& d : damage) {
    const std::string group = group_of(names, d.name), name = group.empty() ? d.name : group;
    auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == name; });
    if (unit == units.end()) unit = units.insert(units.end(), Unit{name, {}, 0});
    unit->modules.push_back(d.name);
    unit->noise = std::max(unit->noise, std::pow(10.0, -d.sqnr_db() / 10));
    const auto module = std::find_if(modules.begin(), modules.end(), [&](const auto& m) { return m.name == d.name; });
    const auto* planned = plan.find(d.name);
    TORCH_INTERNAL_ASSERT(module != modules.end() && planned != nullptr, d.name,
                          ": damage of a module outside the plan");
    unit->bytes_saved += bytes_saved(module->weight, planned->scheme);
  }
  return units;
}

/// The most damage for each byte that keeping the unit gives away first.
template <class Damage>
void sort_by_damage_per_byte(std::vector<Unit>& units, Damage damage) {
  const auto per_byte = [&](const Unit& u) {
    return damage(u) / static_cast<double>(std::max<std::int64_t>(u.bytes_saved, 1));
  };
  std::stable_sort(units.begin(), units.end(), [&](const Unit& a, const Unit& b) { return per_byte(a) > per_byte(b); });
}

class Search {
 public:
  Search(const std::filesystem::path& model, const quant::PlanOptions& plan, const BudgetOptions& options,
         const Context& context)
      : folder_(model),
        plan_(plan),
        options_(options),
        context_(context),
        names_(std::make_shared<const io::Checkpoint>(model)),
        reference_(load(context)),
        // Chunks as long as those that the codes were rounded on, behind which these begin.
        samples_(
            load_samples(options.for_rounding(reference_.model->shape().context), model, reference_.model->shape())) {}

  BudgetResult run() {
    BudgetResult out;
    out.kl_of_all = kl_with({});
    Kept kept;
    if (!(out.kl_of_all <= options_.kl)) {
      rank();
      kept = search();
    }
    out.kl = kl_with(kept);
    explain(kept, out);
    return out;
  }

 private:
  /// The first `units` are in high precision, of those behind them up to `activations` the activations alone.
  struct Kept {
    std::size_t units = 0, activations = 0;
    auto operator<=>(const Kept&) const = default;
  };

  /// The smallest of 1 .. most that meets the budget; `most` does, or is the model itself.
  template <class Meets>
  static std::size_t smallest(std::size_t most, const Meets& meets) {
    std::size_t low = 0;  // too few
    while (most - low > 1) {
      const std::size_t middle = low + (most - low) / 2;
      (meets(middle) ? most : low) = middle;
    }
    return most;
  }

  Kept search() {
    const std::size_t all = units_.size(), activations = options_.weights_only_too ? all : 0;
    const auto meets = [&](const Kept& kept) { return kl_with(kept) <= options_.kl; };
    if (activations > 0 && meets({0, all})) return {0, smallest(all, [&](std::size_t n) { return meets({0, n}); })};
    const std::size_t units = smallest(all, [&](std::size_t n) { return meets({n, activations}); });
    if (units == all)
      throw io::Error(
          fmt::format("{}: no module can be quantized within --budget kl={:g}; with {} alone in fp8 it is "
                      "{:.3g}",
                      folder_.string(), options_.kl, units_.back().name, kl_with({all - 1, activations})));
    return {units, activations};
  }

  /// Of experts no engine keeps the activations alone.
  static bool has_activations(const Unit& unit) { return !quant::has_part(unit.name, "experts"); }

  models::LoadedModel load(const Context& context) const {
    auto loaded = load_language_model(folder_, context);
    if (loaded.config_json.contains("quantization_config"))
      io::fail<io::Error>("{}: --budget expects a high precision checkpoint, found an fp8 one", folder_.string());
    return loaded;
  }

  /// By the KL that each unit causes alone for each byte that it saves, or for models too large for that by its noise
  /// for each byte.
  void rank() {
    const auto modules = measure::weight_modules(*reference_.model);
    const quant::Plan plan = quant::plan_for(modules, quant::nodes_of_checkpoint(*reference_.model), plan_);
    {
      const quant::DamageProbe probe(modules, plan);
      run_chunks("damage", std::min(samples_.count(), kRankingChunks),
                 [&](const SampleBatch& part) { logits_of(*reference_.model, part, at::kHPU); });
      units_ = units_of(probe.result(), quant::ModelNames(reference_.config_json), modules, plan);
    }
    sort_by_damage_per_byte(units_, [](const Unit& u) { return u.noise; });
    const auto bytes = static_cast<std::uint64_t>(models::weights_bytes(*reference_.model));
    by_kl_ = bytes * units_.size() <= kMaxReadBytes;
    if (!by_kl_) return;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      quant::PlanOptions only = plan_;
      for (std::size_t i = 0; i < units_.size(); ++i)
        for (const auto& name : units_[i].modules)
          if (i != u) only.keep[name] = "--budget";
      units_[u].kl =
          kl_of(only, std::min(samples_.count(), kRankingChunks), fmt::format("unit {} of {}", u + 1, units_.size()));
    }
    sort_by_damage_per_byte(units_, [](const Unit& u) { return u.kl; });
  }

  template <class Body>
  void run_chunks(const std::string& what, std::int64_t count, Body body) {
    Progress progress(context_, what, count);
    for (std::int64_t first = 0; first < count;) {
      check_interrupted();
      const auto together = samples_.together(first, std::min(options_.batch, count - first));
      body(samples_.batch(first, together));
      progress.update(first += together);
    }
  }

  /// Mean KL over all positions (of classifiers: over all chunks) of the first `count` chunks, of a fresh model
  /// converted by `plan`.
  double kl_of(const quant::PlanOptions& plan, std::int64_t count, const std::string& what) {
    models::LoadedModel model = load(context_);
    quant::convert(measure::weight_modules(*model.model), quant::nodes_of_checkpoint(*model.model), plan,
                   options_.rounded.get());
    double kl = 0;
    std::int64_t rows = 0;
    run_chunks(what, count, [&](const SampleBatch& part) {
      const auto logits = logits_of(*model.model, part, at::kHPU).to(at::kCPU),
                 expected = logits_of(*reference_.model, part, at::kHPU).to(at::kCPU);
      for (const auto& score : score_chunks(logits, {}, expected)) kl += score.kl;
      rows += logits.size(0) * logits.size(1);
    });
    return kl / static_cast<double>(rows);
  }

  /// Measured once for each.
  double kl_with(const Kept& kept) {
    if (const auto known = measured_.find(kept); known != measured_.end()) return known->second;
    quant::PlanOptions plan = plan_;
    for (std::size_t i = 0; i < std::max(kept.units, kept.activations); ++i) {
      for (const auto& name : units_[i].modules) {
        if (i < kept.units)
          plan.keep[name] = "--budget";
        else if (has_activations(units_[i]))
          plan.weights_only[name] = "--budget";
      }
    }
    return measured_[kept] = kl_of(plan, samples_.count(), fmt::format("{} kept", kept.units));
  }

  std::string why(std::size_t rank, const char* what, std::size_t kept, const BudgetResult& r) const {
    const Unit& unit = units_[rank];
    const std::string alone =
        by_kl_ ? fmt::format("alone in fp8 it costs KL {:.2g} and saves {} bytes", unit.kl, unit.bytes_saved)
               : fmt::format("SQNR {:.1f} dB", unit.sqnr_db());
    return fmt::format("{} by --budget kl={:g}: {}, rank {} of {}; KL {:.3g} with none kept, {:.3g} with these {}",
                       what, options_.kl, alone, rank + 1, units_.size(), r.kl_of_all, r.kl, kept);
  }

  void explain(const Kept& kept, BudgetResult& out) {
    out.report = {
        {"budget", options_.kl},
        {"kl", out.kl},
        {"kl_of_all", out.kl_of_all},
        {"ranked_by", units_.empty() ? io::Json(nullptr) : io::Json(by_kl_ ? "kl per byte" : "noise per byte")},
        {"kept", io::Json::array()},
        {"weights_only", io::Json::array()},
        {"units", io::Json::array()},
        {"runs", io::Json::array()}};
    const auto add_names = [&](io::Json& list, const std::string& module) {
      for (auto& name : names_.of(module)) list.push_back(std::move(name));
    };
    for (const auto& unit : units_) {
      io::Json modules = io::Json::array();
      for (const auto& module : unit.modules) add_names(modules, module);
      io::Json entry = {
          {"modules", std::move(modules)}, {"sqnr_db", unit.sqnr_db()}, {"bytes_saved", unit.bytes_saved}};
      if (by_kl_) entry["kl_alone"] = unit.kl;
      out.report["units"].push_back(std::move(entry));
    }
    for (std::size_t i = kept.units; i < kept.activations; ++i) {
      if (!has_activations(units_[i])) continue;
      for (const auto& name : units_[i].modules) {
        out.weights_only[name] = why(i, "activations kept", kept.activations, out);
        add_names(out.report["weights_only"], name);
      }
    }
    for (std::size_t i = 0; i < kept.units; ++i) {
      for (const auto& name : units_[i].modules) {
        out.keep[name] = why(i, "kept", kept.units, out);
        for (auto& called : names_.of(name)) {
          io::Json entry = {{"name", std::move(called)},
                            {"rank", i + 1},
                            {"sqnr_db", units_[i].sqnr_db()},
                            {"bytes_saved", units_[i].bytes_saved}};
          if (by_kl_) entry["kl_alone"] = units_[i].kl;
          out.report["kept"].push_back(std::move(entry));
        }
      }
    }
    for (const auto& [n, kl] : measured_)
      out.report["runs"].push_back({{"kept", n.units}, {"weights_only", n.activations}, {"kl", kl}});
  }

  std::filesystem::path folder_;
  const quant::PlanOptions& plan_;
  const BudgetOptions& options_;
  const Context& context_;
  quant::NamesInCheckpoint names_;
  models::LoadedModel reference_;
  Samples samples_;
  std::vector<Unit> units_;
  bool by_kl_ = false;
  std::map<Kept, double> measured_;
};

BudgetResult search(const std::filesystem::path& model, const quant::PlanOptions& plan, const BudgetOptions& options,
                    const Context& context) {
  if (context.device != "hpu")
    io::fail<UsageError>("--device: found '{}', but --budget measures on: hpu", context.device);
  const TorchScope scope(context);
  const at::NoGradGuard no_grad;
  return Search(model, plan, options, context).run();
}

const Provided g_budget(meet_budget, search);

}  // namespace
}  // namespace fp8::commands
