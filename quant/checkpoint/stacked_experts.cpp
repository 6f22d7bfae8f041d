// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/stacked_experts.h"

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/names/expert_weights.h"

namespace fp8::quant {
namespace {

constexpr std::string_view kWeightEnding = ".weight";

/// A tensor's name without ".weight".
std::string stem_of(const std::string& tensor) {
  return tensor.ends_with(kWeightEnding) ? tensor.substr(0, tensor.size() - kWeightEnding.size()) : tensor;
}

/// The part before `end` ("experts.down_proj") of a tensor's name, with its dot; nothing if the name has another end.
std::optional<std::string> before(const std::string& tensor, std::string_view end) {
  const std::string stem = stem_of(tensor);
  if (end.empty() || !stem.ends_with(end)) return std::nullopt;
  std::string start = stem.substr(0, stem.size() - end.size());
  if (!start.empty() && start.back() != '.') return std::nullopt;
  return start;
}

/// The tensor `name` or `name`.weight; empty if there is none of three dimensions in floating point.
std::string stack_called(const io::Checkpoint& source, const std::string& name) {
  for (const std::string& tensor : {name, name + std::string(kWeightEnding)})
    if (source.contains(tensor) && source.info(tensor).shape.size() == 3 && is_float(source.info(tensor).dtype))
      return tensor;
  return "";
}

/// The mixture that a stack belongs to: as its family calls it, else through the part of its name that ends in
/// "experts". Empty if the name is no stack's.
std::string mixture_of(const std::string& tensor, const ExpertFamily* family) {
  for (std::size_t i = 0; family != nullptr && i < family->spellings.size(); ++i) {
    const auto& s = family->spellings[i];
    for (const auto end : {s.gate_up, s.gate, s.up, s.down})
      if (const auto below = before(tensor, end)) return *below + std::string(s.experts);
  }
  constexpr std::string_view kPart = ".experts.";
  const auto at = ("." + tensor).find(kPart);  // of whole parts: "shared_experts" are no mixture
  if (at == std::string::npos)
    return ("." + tensor).find(".expert") == std::string::npos ? "" : tensor.substr(0, tensor.rfind('.'));
  const char next =
      tensor[at + kPart.size() - 1];  // a number: what belongs to a single expert, its scales among others
  return next >= '0' && next <= '9' ? "" : tensor.substr(0, at + kPart.size() - 2);
}

[[noreturn]] void refuse(const io::Checkpoint& source, const io::TensorInfo& tensor, const std::string& problem) {
  io::fail<io::Error>("{}: {}: shape {}: {}{}", source.folder().string(), io::printable(tensor.name),
                      io::shape_text(tensor.shape), problem, io::option("stacked_experts", ""));
}

/// The axes of a stack of gate with up (fused), or of one of them, as the family has them and the stack of down agrees.
ExpertAxes axes_of(const io::Checkpoint& source, const io::TensorInfo& up, const io::TensorInfo& down, bool fused,
                   ExpertAxes wanted) {
  for (const auto* stack : {&up, &down}) {
    const auto& sizes = stack->shape;
    if (std::ranges::find(sizes, 0) != sizes.end())
      refuse(source, *stack, "expected experts with values, [E, rows, columns]");
  }
  if (up.shape[0] != down.shape[0])
    refuse(source, down, "expected as many experts as in " + up.name + ", " + std::to_string(up.shape[0]));
  const auto out = [](const io::TensorInfo& t, ExpertAxes axes) {
    return axes == ExpertAxes::in_out ? t.shape[2] : t.shape[1];
  };
  const auto in = [](const io::TensorInfo& t, ExpertAxes axes) {
    return axes == ExpertAxes::in_out ? t.shape[1] : t.shape[2];
  };
  const auto fit = [&](ExpertAxes axes) {
    return out(up, axes) == (fused ? 2 : 1) * in(down, axes) && in(up, axes) == out(down, axes);
  };
  const bool upright = fit(ExpertAxes::out_in), transposed = fit(ExpertAxes::in_out);
  io::ensure(!fused || !upright || !transposed, "gate and up to fit one way only");
  if (wanted == ExpertAxes::by_shapes && upright != transposed)
    return upright ? ExpertAxes::out_in : ExpertAxes::in_out;
  if (wanted == ExpertAxes::out_in ? upright : wanted == ExpertAxes::in_out && transposed) return wanted;
  if (fused && out(up, wanted) % 2 != 0)
    refuse(source, up, "expected gate and up of one size, found " + std::to_string(out(up, wanted)) + " rows of both");
  const std::string rows = fused ? "2 I" : "I";
  refuse(source, up,
         io::message("expected {}, found {} in {}",
                     wanted == ExpertAxes::in_out ? "[E, H, " + rows + "] beside [E, I, H]"
                                                  : "[E, " + rows + ", H] beside [E, H, I]",
                     io::shape_text(down.shape), down.name));
}

/// One expert's part of a stack. parts: of the output rows, 2 where gate and up share it; part: which.
WeightSlice part_of(const io::TensorInfo& stack, ExpertAxes axes, GateUp order, std::int64_t expert, std::int64_t parts,
                    std::int64_t part) {
  const bool upright = axes == ExpertAxes::out_in, by_turns = parts > 1 && order == GateUp::interleaved;
  const std::int64_t all_rows = upright ? stack.shape[1] : stack.shape[2],
                     cols = upright ? stack.shape[2] : stack.shape[1];
  const std::int64_t rows = all_rows / parts, row = upright ? cols : 1;  // row: from one output row to the next
  WeightSlice s;
  s.tensor = stack.name;
  s.rows = rows;
  s.cols = cols;
  s.row_stride = by_turns ? parts * row : row;
  s.col_stride = upright ? 1 : all_rows;
  s.first = expert * all_rows * cols + part * (by_turns ? row : rows * row);
  s.expert = expert;
  return s;
}

}  // namespace

StackedExperts::StackedExperts(const io::Checkpoint& source, const io::Json& config, ExpertForm form,
                               const std::map<std::string, std::string>& keep) {
  const ExpertFamily* family = expert_family(config);
  const bool by_family = family != nullptr && !family->keep.empty();  // keeps them
  const bool cast = form == ExpertForm::each && !by_family;
  if (cast && family != nullptr) find_family_stacks(source, *family);
  if (!mixtures_.empty()) note_ = family->note();
  const std::size_t described = mixtures_.size();
  find_other_stacks(source, family);
  for (std::size_t i = 0; i < mixtures_.size(); ++i) {
    auto& m = mixtures_[i];
    if (i >= described) {
      m.kept = m.packed                   ? std::string("in MXFP4 already")
               : form == ExpertForm::keep ? "stacked experts, kept by " + io::option("experts")
               : by_family                ? std::string(family->keep)
                           : "experts stacked in one tensor, and how is not known of this model_type: readers of this "
                             "form take one weight per expert";
      if (cast && !m.packed && unknown_++ == 0) first_unknown_ = m.tensors.front();
    }
    for (const auto& tensor : m.tensors) {
      const auto found = keep.find(stem_of(tensor));
      if (found != keep.end() && m.kept.empty()) m.kept = found->second;
    }
  }
}

void StackedExperts::find_family_stacks(const io::Checkpoint& source, const ExpertFamily& family) {
  for (const auto& tensor : source.names()) {
    for (const auto& spelling : family.spellings)
      if (before(tensor, spelling.down).has_value() && !is_stack(tensor) && add_mixture(source, spelling, tensor))
        break;
  }
}

/// False where the other stacks of this spelling are not beside `down`.
bool StackedExperts::add_mixture(const io::Checkpoint& source, const ExpertSpelling& s, const std::string& down) {
  const std::string below = *before(down, s.down);
  if (stack_called(source, stem_of(down)) != down) return false;
  StackedMixture m;
  m.name = below + std::string(s.experts);
  std::vector<std::vector<std::string_view>> projections;  // of each tensor
  const auto add = [&](std::string_view end, std::vector<std::string_view> names) {
    if (end.empty()) return true;
    m.tensors.push_back(stack_called(source, below + std::string(end)));
    projections.push_back(std::move(names));
    return !m.tensors.back().empty();
  };
  if (!add(s.gate_up, {s.gate_proj, s.up_proj}) || !add(s.gate, {s.gate_proj}) || !add(s.up, {s.up_proj})) return false;
  ExpertAxes axes = s.axes;
  for (const auto& up : m.tensors)
    axes = axes_of(source, source.info(up), source.info(down), !s.gate_up.empty(), s.axes);
  add(s.down, {s.down_proj});
  const std::string written = written_below(below, s) + std::string(s.experts) + ".";
  for (std::size_t t = 0; t < m.tensors.size(); ++t) {
    const auto& stack = source.info(m.tensors[t]);
    const auto parts = static_cast<std::int64_t>(projections[t].size());
    m.modules.emplace_back();
    for (std::int64_t i = 0; i < stack.shape[0] * parts; ++i) {
      const std::string name =
          written + std::to_string(i / parts) + "." + std::string(projections[t][static_cast<std::size_t>(i % parts)]);
      if (source.contains(name + ".weight"))
        refuse(source, stack, "stacks a weight that " + name + ".weight holds too");
      m.modules.back().push_back(modules_.size());
      by_module_.emplace(name, modules_.size());
      modules_.push_back({name, part_of(stack, axes, s.order, i / parts, parts, i % parts), mixtures_.size()});
    }
    by_tensor_[m.tensors[t]] = {mixtures_.size(), t};
  }
  mixtures_.push_back(std::move(m));
  return true;
}

/// The prefix of the experts in the output; notes what else is renamed.
std::string StackedExperts::written_below(const std::string& below, const ExpertSpelling& s) {
  const std::string parent = std::string(s.parent) + ".";
  if (s.parent.empty() || !below.ends_with(parent)) return below;
  const std::string written = below.substr(0, below.size() - parent.size()) + std::string(s.written_parent) + ".";
  renamed_[below] = written;
  if (!s.router.empty()) renamed_[below + std::string(s.router) + "."] = written + std::string(s.written_router) + ".";
  return written;
}

/// Those that no spelling describes, or that are to stay: tensors of three dimensions, and matrices that are no
/// module's weight.
void StackedExperts::find_other_stacks(const io::Checkpoint& source, const ExpertFamily* family) {
  std::map<std::string, std::size_t> by_name;
  const auto stacks = mxfp4_stacks(source);
  const std::unordered_set<std::string> packed(stacks.begin(), stacks.end());
  for (const auto& tensor : source.names()) {
    const bool is_packed = packed.contains(tensor);
    const auto& info = source.info(tensor);
    const bool matrix = info.shape.size() == 2 && has_part(tensor, "experts") && !tensor.ends_with(kWeightEnding);
    const bool stack = is_float(info.dtype) && (info.shape.size() == 3 || matrix);
    if (is_stack(tensor) || !(stack || is_packed)) continue;
    const std::string name = mixture_of(tensor, family);
    if (name.empty()) continue;
    const auto [found, is_new] = by_name.emplace(name, mixtures_.size());
    if (is_new) mixtures_.emplace_back().name = name;
    auto& m = mixtures_[found->second];
    m.packed = m.packed || is_packed;
    by_tensor_[tensor] = {found->second, m.tensors.size()};
    m.tensors.push_back(tensor);
  }
}

const WeightSlice* StackedExperts::slice_of(const std::string& module) const {
  const auto found = by_module_.find(module);
  return found == by_module_.end() ? nullptr : &modules_[found->second].slice;
}

std::vector<ModuleInfo> StackedExperts::modules() const {
  std::vector<ModuleInfo> list;
  for (const auto& m : modules_)
    if (mixtures_[m.mixture].kept.empty()) list.push_back({m.name, "Linear", {m.slice.rows, m.slice.cols}});
  return list;
}

std::vector<std::string> StackedExperts::modules_of(const std::string& tensor) const {
  std::vector<std::string> names;
  const auto found = by_tensor_.find(tensor);
  if (found == by_tensor_.end() || !mixtures_[found->second.first].kept.empty()) return names;
  for (const std::size_t i : mixtures_[found->second.first].modules[found->second.second])
    names.push_back(modules_[i].name);
  return names;
}

std::string StackedExperts::written_name(const std::string& name) const {
  if (renamed_.empty()) return name;
  const std::string all = name + ".";  // a module may be what is renamed
  for (auto dot = all.size() - 1; dot != std::string::npos && dot > 0; dot = all.rfind('.', dot - 1)) {
    const auto found = renamed_.find(all.substr(0, dot + 1));
    if (found == renamed_.end()) continue;
    const std::string written = found->second + all.substr(dot + 1);
    return written.substr(0, written.size() - 1);
  }
  return name;
}

void StackedExperts::settle(std::vector<PlannedModule>& modules, std::vector<SkippedModule>& skipped) {
  std::unordered_map<std::string, std::string> reasons;
  for (const auto& s : skipped) reasons.emplace(s.name, s.reason);
  std::unordered_set<std::string> planned;
  for (const auto& m : modules) planned.insert(m.info.name);
  for (auto& m : mixtures_)
    if (m.kept.empty()) m.kept = reason_to_keep(m, planned, reasons);
  const auto stays = [&](const std::string& module) {
    const auto found = by_module_.find(module);
    return found != by_module_.end() && !mixtures_[modules_[found->second].mixture].kept.empty();
  };
  std::unordered_set<std::string> stems;
  for (const auto& [tensor, place] : by_tensor_) stems.insert(stem_of(tensor));
  std::erase_if(modules, [&](const PlannedModule& m) { return stays(m.info.name) || stems.contains(m.info.name); });
  std::erase_if(skipped, [&](const SkippedModule& s) { return stays(s.name) || stems.contains(s.name); });
  for (const auto& m : mixtures_) {
    for (const auto& tensor : m.tensors) {
      const bool beside = m.packed && !tensor.ends_with("_blocks");  // their biases
      if (!m.kept.empty() && !beside) skipped.push_back({stem_of(tensor), m.kept});
    }
  }
}

/// Empty where all of its modules are planned.
std::string StackedExperts::reason_to_keep(const StackedMixture& mixture,
                                           const std::unordered_set<std::string>& planned,
                                           const std::unordered_map<std::string, std::string>& reasons) const {
  std::string missing;
  bool any = false;
  for (const auto& list : mixture.modules) {
    for (const std::size_t i : list) {
      const bool is_planned = planned.contains(modules_[i].name);
      any = any || is_planned;
      if (!is_planned && missing.empty()) missing = modules_[i].name;
    }
  }
  if (missing.empty()) return "";
  const auto found = reasons.find(missing);
  const std::string reason = found == reasons.end() ? "not planned" : found->second;
  return any ? "readers run all experts of a layer alike, and " + missing + " is not converted: " + reason : reason;
}

std::vector<std::string> StackedExperts::kept() const {
  std::vector<std::string> names;
  for (const auto& m : mixtures_)
    if (!m.kept.empty() && !m.packed) names.push_back(m.name);
  return names;
}

std::vector<std::string> StackedExperts::packed() const {
  std::vector<std::string> names;
  for (const auto& m : mixtures_)
    if (m.packed) names.push_back(m.name);
  return names;
}

std::vector<std::string> StackedExperts::notices() const {
  std::vector<std::string> lines;
  if (!note_.empty()) lines.push_back("stacked experts are written one by one: " + note_);
  if (unknown_ > 0)
    lines.push_back(
        io::message("stacked experts: the table of families has no row for those of this model_type, {} mixtures stay "
                    "in high precision (the first tensor is '{}')",
                    unknown_, first_unknown_));
  return lines;
}

}  // namespace fp8::quant
