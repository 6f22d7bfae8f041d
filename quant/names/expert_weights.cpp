// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/expert_weights.h"

#include <charconv>
#include <system_error>

#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {
namespace {

constexpr std::string_view kOp = ".experts.moe_op.", kMixture = ".experts.moe_op", kWeight = ".weight";

/// How an expert's projections are called where they stand one by one.
struct Spelling {
  const char *gate, *up, *down;
};
constexpr Spelling kSpellings[] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};

/// A tensor's name without ".weight".
std::string stem_of(const std::string& tensor) {
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

/// "model.layers.0.mlp", and what other writers call that.
std::vector<std::string> parents_of(const std::string& parent) {
  const auto dot = parent.rfind('.');
  const std::string layer = dot == std::string::npos ? "" : parent.substr(0, dot + 1);
  std::vector<std::string> parents = {parent};
  for (const char* other : {"block_sparse_moe", "mlp", "feed_forward"})
    if (layer + other != parent) parents.push_back(layer + other);
  return parents;
}

/// "w13_list.7.weight" -> the list's name and 7; nullopt for anything else.
struct Place {
  bool gate_up;
  std::int64_t expert;
};
std::optional<Place> place_of(std::string_view rest) {
  const auto dot = rest.find('.');
  if (dot == std::string_view::npos || rest.size() <= kWeight.size() ||
      rest.substr(rest.size() - kWeight.size()) != kWeight)
    return std::nullopt;
  const auto list = rest.substr(0, dot);
  if (list != "w13_list" && list != "w2_list") return std::nullopt;
  const auto number = rest.substr(dot + 1, rest.size() - kWeight.size() - dot - 1);
  Place place{list == "w13_list", 0};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), place.expert);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return place;
}

/// All forms that a checkpoint may keep a projection of an expert in.
std::vector<std::vector<WeightPiece>> forms_of(const std::vector<std::string>& parents, const Place& place) {
  std::vector<std::vector<WeightPiece>> forms;
  for (const auto& parent : parents) {
    const std::string expert = parent + ".experts." + std::to_string(place.expert) + ".";
    const auto weight = [&](const char* projection) {
      return WeightPiece{expert + projection + ".weight", std::nullopt, /*of_expert=*/true};
    };
    const auto stacked = [&](const char* tensor) {
      return WeightPiece{parent + "." + tensor, place.expert, /*of_expert=*/true};
    };
    for (const auto& spelling : kSpellings) {
      if (place.gate_up)
        forms.push_back({weight(spelling.gate), weight(spelling.up)});
      else
        forms.push_back({weight(spelling.down)});
    }
    forms.push_back({stacked(place.gate_up ? "experts.gate_up_proj" : "experts.down_proj")});
    forms.push_back({stacked(place.gate_up ? "input_linear.weight" : "output_linear.weight")});
  }
  return forms;
}

/// A parameter of no expert: the router stands beside the experts, wherever they are.
std::vector<WeightPiece> beside_experts(const std::string& name, const io::Checkpoint& checkpoint) {
  if (checkpoint.contains(name)) return {{name}};
  for (const std::string_view block : {".block_sparse_moe.", ".mlp."}) {
    const auto at = name.find(block);
    if (at == std::string::npos) continue;
    const std::string rest = name.substr(at + block.size());
    for (const auto& parent : parents_of(name.substr(0, at + block.size() - 1)))
      if (checkpoint.contains(parent + "." + rest)) return {{parent + "." + rest}};
  }
  // Norms of checkpoints that come from TensorFlow.
  for (const auto& [ours, theirs] :
       {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}}) {
    if (!name.ends_with(ours)) continue;
    const std::string other = name.substr(0, name.size() - std::string_view(ours).size()) + theirs;
    if (checkpoint.contains(other)) return {{other}};
  }
  return {{name}};
}

/// The family of experts that config.json tells of; null without one.
const ExpertFamily* family_of_experts(const io::Checkpoint& checkpoint) {
  std::error_code ignored;
  if (!std::filesystem::exists(checkpoint.folder() / io::kConfigFile, ignored)) return nullptr;
  return expert_family(io::read_python_json(io::source_file(checkpoint.folder(), io::kConfigFile)));
}

/// The modules that parameter `name` is made of, as a checkpoint of single experts calls them: one that is stacked is
/// taken apart when it is written.
std::vector<std::string> written_modules(const std::string& name, const io::Checkpoint& checkpoint,
                                         const ExpertFamily* family) {
  const auto pieces = pieces_of(name, checkpoint);
  std::vector<std::string> modules;
  if (!pieces[0].index.has_value()) {
    for (const auto& piece : pieces) modules.push_back(piece.tensor.substr(0, piece.tensor.rfind('.')));
    return modules;
  }
  const ExpertSpelling spelling = family != nullptr ? family->spellings[0] : ExpertSpelling();
  const auto op = name.find(kOp);
  const auto place = place_of(std::string_view(name).substr(op + kOp.size()));
  std::string parent = name.substr(0, op);
  const auto leaf = parent.rfind('.') + 1;
  if (!spelling.parent.empty() && parent.substr(leaf) == spelling.parent)
    parent.replace(leaf, std::string::npos, spelling.written_parent);
  const std::string expert = parent + ".experts." + std::to_string(place->expert) + ".";
  if (!place->gate_up) return {expert + std::string(spelling.down_proj)};
  return {expert + std::string(spelling.gate_proj), expert + std::string(spelling.up_proj)};
}

/// "P.experts" of "P.experts.moe_op", P as the checkpoint calls it.
std::string written_mixture(const std::string& mixture, const io::Checkpoint& checkpoint, const ExpertFamily* family) {
  const std::string expert = written_modules(mixture + ".w2_list.0" + std::string(kWeight), checkpoint, family)[0];
  return expert.substr(0, expert.rfind('.', expert.rfind('.') - 1));
}

/// As transformers 5 names them in memory, and as most files do that stack them.
constexpr ExpertSpelling kGateUp{.gate_up = "experts.gate_up_proj", .down = "experts.down_proj"};
/// These tensors in models whose files call the projections by numbers.
constexpr ExpertSpelling kNumbered{.gate_up = "experts.gate_up_proj",
                                   .down = "experts.down_proj",
                                   .gate_proj = "w1",
                                   .up_proj = "w3",
                                   .down_proj = "w2"};
/// And the module around them otherwise.
constexpr ExpertSpelling kMixtral{.gate_up = "experts.gate_up_proj",
                                  .down = "experts.down_proj",
                                  .gate_proj = "w1",
                                  .up_proj = "w3",
                                  .down_proj = "w2",
                                  .parent = "mlp",
                                  .written_parent = "block_sparse_moe"};
constexpr ExpertSpelling kPhi{.gate_up = "experts.gate_up_proj",
                              .down = "experts.down_proj",
                              .gate_proj = "w1",
                              .up_proj = "w3",
                              .down_proj = "w2",
                              .parent = "mlp",
                              .written_parent = "block_sparse_moe",
                              .router = "router",
                              .written_router = "gate"};
constexpr ExpertSpelling kGranite{.gate_up = "block_sparse_moe.input_linear",
                                  .down = "block_sparse_moe.output_linear",
                                  .experts = "block_sparse_moe.experts"};
constexpr ExpertSpelling kAria{.gate_up = "experts.fc1", .down = "experts.fc2", .axes = ExpertAxes::in_out};
constexpr ExpertSpelling kStep{
    .gate = "moe.gate_proj", .up = "moe.up_proj", .down = "moe.down_proj", .experts = "moe.experts"};
constexpr ExpertSpelling kTransposed{
    .gate_up = "experts.gate_up_proj", .down = "experts.down_proj", .axes = ExpertAxes::in_out};
constexpr ExpertSpelling kEitherWay{
    .gate_up = "experts.gate_up_proj", .down = "experts.down_proj", .axes = ExpertAxes::by_shapes};
constexpr ExpertSpelling kNoGate{.up = "experts.up_proj", .down = "experts.down_proj"};

constexpr ExpertFamily kFamilies[] = {
    // Files hold an expert's weights one by one; stacks are what transformers has in memory, and writes where asked to.
    {.model_types =
         "afmoe axk1 axk2 bailing_hybrid beam cohere2_moe deepseek_ocr2 deepseek_v2 deepseek_v3 deepseek_v32 dots1 "
         "dots3_note dots3_note_text ernie4_5_moe exaone_moe flex_olmo flint glm4_moe glm4_moe_lite glm4v_moe "
         "glm4v_moe_text glm5_next glm5_next_text glm_moe_dsa hunyuan_v1_moe hy_v3 jamba kimi_k25 kolibri1 laguna "
         "longcat_flash mellum mimo_v2_flash olmoe qwen2_moe qwen3_5_moe qwen3_5_moe_text qwen3_moe qwen3_next "
         "qwen3_omni_moe qwen3_omni_moe_text qwen3_omni_moe_thinker qwen4_exp qwen4_exp_text solar_open unlimited_ocr",
     .spellings = {{kGateUp}}},
    {.model_types = "deepseek_v4 lfm2_moe minimax_m3_vl mistral_large4 mistral_large4_text",
     .spellings = {{kNumbered}}},
    {.model_types = "kimi_linear minimax minimax_m2 mixtral", .spellings = {{kMixtral}}},
    {.model_types = "phimoe", .spellings = {{kPhi}}},
    {.model_types = "nemo_speechlm nemotron_h", .spellings = {{kNoGate}}},
    // Files stack them.
    {.model_types = "llama4 llama4_text", .spellings = {{kTransposed}}, .listed = true},
    {.model_types = "qwen3_vl_moe qwen3_vl_moe_text", .spellings = {{kEitherWay}}, .vllm_only = true},
    {.model_types = "granitemoe granitemoehybrid granitemoeshared",
     .spellings = {{kGranite, kGateUp}},
     .vllm_only = true},
    {.model_types = "gemma4 gemma4_text", .spellings = {{kGateUp}}, .vllm_only = true},
    {.model_types = "aria aria_text", .spellings = {{kAria, kTransposed}}, .vllm_only = true},
    {.model_types = "step3p7", .spellings = {{kStep}}, .vllm_only = true},
    {.model_types = "ernie4_5_vl_moe ernie4_5_vl_moe_text",
     .keep = "readers take no stacks of experts for text and for images",
     .unread = "transformers fails to join the experts for text and for images of any quantized file; vLLM reads them "
               "one by one"},  // 5.23: core_model_loading.py:688
    {.model_types = "gpt_oss openai_privacy_filter",
     .keep = "experts with biases, gate and up by turns: readers take them stacked only"},
    {.model_types = "dbrx diffusion_gemma diffusion_gemma_text granitemoe_swa inkling2 inkling2_text inkling_mm_model "
                    "inkling_text jetmoe mistral4 muse_spark zaya",
     .keep = "readers take the experts of this family stacked only"},
};

const ExpertFamily* find(const io::Json& config) {
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  if (!config.is_object() || type == config.end() || !type->is_string()) return nullptr;
  const std::string wanted = " " + type->get<std::string>() + " ";
  if (wanted.find(' ', 1) + 1 != wanted.size()) return nullptr;
  for (const auto& family : kFamilies)
    if ((" " + std::string(family.model_types) + " ").find(wanted) != std::string::npos) return &family;
  return nullptr;
}

constexpr std::string_view kUpList = ".w13_list.", kDownList = ".w2_list.";

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Routers stand where the experts do: of stacks that transformers wrote not where the model in memory has them.
void rename_beside_experts(measure::MeasurementFile& file, const io::Checkpoint& checkpoint) {
  const auto rename = [&](std::string& name) {
    if (name.ends_with(kMixture) || name.find(std::string(kMixture) + ".") != std::string::npos) return;
    const std::string tensor = beside_experts(name + std::string(kWeight), checkpoint)[0].tensor;
    if (checkpoint.contains(tensor)) name = tensor.substr(0, tensor.size() - kWeight.size());
  };
  for (auto& m : file.modules) rename(m.module);
  std::ranges::for_each(file.selected, rename);
}

}  // namespace

std::string ExpertFamily::note() const {
  if (!vllm_only) return "";
  return "vLLM reads those of this family so; transformers has no names for single ones, and reads them with " +
         io::option("experts", "'experts' keep") + " only";
}

std::vector<WeightPiece> pieces_of(const std::string& name, const io::Checkpoint& checkpoint) {
  const auto op = name.find(kOp);
  if (op == std::string::npos) return beside_experts(name, checkpoint);
  const auto place = place_of(std::string_view(name).substr(op + kOp.size()));
  if (!place.has_value()) return {{name}};
  const auto parents = parents_of(name.substr(0, op));
  const auto forms = forms_of(parents, *place);
  const auto is_there = [&](const auto& form) { return checkpoint.contains(form[0].tensor); };
  if (const auto form = std::ranges::find_if(forms, is_there); form != forms.end()) return *form;
  const auto of_first = forms_of(parents, {place->gate_up, 0});  // this expert is missing: spelled as the others are
  const auto form = std::ranges::find_if(of_first, is_there);
  return forms[form == of_first.end() ? 0 : static_cast<std::size_t>(form - of_first.begin())];
}

measure::MeasurementFile in_names_of_checkpoint(measure::MeasurementFile file, const io::Checkpoint& checkpoint,
                                                std::vector<std::string>& warnings) {
  const auto ends_in_mixture = [&](const std::string& name) {
    return name.size() > kMixture.size() && name.ends_with(kMixture);
  };
  const auto is_part = [&](const std::string& name) {
    return name.find(std::string(kMixture) + ".") != std::string::npos;
  };
  // A head that is the word table: files have its bias alone, and readers nothing to quantize.
  const auto is_tied = [&](const std::string& name) {
    return !checkpoint.contains(name + std::string(kWeight)) && checkpoint.contains(name + ".bias");
  };
  std::erase_if(file.modules, [&](const auto& m) { return is_tied(m.module); });
  std::erase_if(file.selected, is_tied);
  const bool any = std::ranges::any_of(file.modules, [&](const auto& m) { return ends_in_mixture(m.module); });
  if (!any) return file;
  rename_beside_experts(file, checkpoint);
  const auto* family = family_of_experts(checkpoint);
  measure::MeasurementFile out = file;
  out.model.reset();  // of the model in memory, which has other names
  out.modules.clear();
  std::erase_if(out.selected, [&](const std::string& name) { return ends_in_mixture(name) || is_part(name); });
  for (auto& m : file.modules) {
    if (!ends_in_mixture(m.module)) {
      if (!is_part(m.module)) out.modules.push_back(std::move(m));
      continue;
    }
    if (m.inputs.empty() || !m.outputs.has_value() || m.outputs->empty()) continue;
    std::vector<std::string> said;
    const auto intermediate = expert_amax(m, m.outputs->size() - 1, said);
    for (const auto& warning : said)  // begins with the module
      warnings.push_back(written_mixture(m.module, checkpoint, family) + warning.substr(m.module.size()));
    for (std::size_t e = 0; e < intermediate.size(); ++e) {
      const auto add = [&](const std::vector<std::string>& names, const measure::Amax& amax) {
        for (const auto& name : names) {
          out.modules.push_back({name, {amax}, std::nullopt, std::nullopt});
          out.selected.push_back(name);
        }
      };
      const std::string place = "." + std::to_string(e) + std::string(kWeight);
      add(written_modules(m.module + ".w13_list" + place, checkpoint, family), m.inputs[0]);
      add(written_modules(m.module + ".w2_list" + place, checkpoint, family), {intermediate[e]});
    }
  }
  return out;
}

WeightPlace place_on_load(CheckpointReader reader, const std::string& module, const ExpertFamily* family) {
  if (mixture_of(module).empty()) return WeightPlace::linear;
  if (reader == CheckpointReader::vllm) return WeightPlace::joined;
  const bool joins = family != nullptr && !family->spellings.front().down.empty() && !family->listed;
  return reader == CheckpointReader::transformers && joins ? WeightPlace::joined : WeightPlace::linear;
}

NamesInCheckpoint::NamesInCheckpoint(std::shared_ptr<const io::Checkpoint> checkpoint)
    : checkpoint_(std::move(checkpoint)), family_(family_of_experts(*checkpoint_)) {}

std::vector<std::string> NamesInCheckpoint::of(const std::string& module) const {
  if (module.ends_with(kMixture)) return {written_mixture(module, *checkpoint_, family_)};
  const std::string parameter = module + std::string(kWeight);
  const auto pieces = pieces_of(parameter, *checkpoint_);
  const bool stays_stacked = pieces[0].index.has_value() && (family_ == nullptr || !family_->keep.empty());
  if (stays_stacked) return {stem_of(pieces[0].tensor)};
  return written_modules(parameter, *checkpoint_, family_);
}

std::vector<std::string> NamesInCheckpoint::all_of(const std::string& module) const {
  auto names = of(module);
  if (!module.ends_with(kMixture)) {
    const std::string first = names[0], mixture = first.substr(0, first.rfind('.', first.rfind('.') - 1) + 1);
    for (const auto& piece : pieces_of(module + std::string(kWeight), *checkpoint_)) {
      if (!piece.index.has_value()) continue;
      const std::string stem = stem_of(piece.tensor);
      names.push_back(stem);
      names.push_back(mixture + stem.substr(stem.rfind('.') + 1));  // as it is written where it stays whole
    }
    if (module.find(kMixture) == std::string::npos && names[0] != module) names.push_back(module);  // as outputs do
    return names;
  }
  const auto add = [&](const std::string& weight) {
    const auto piece = pieces_of(weight + std::string(kWeight), *checkpoint_).front();
    const bool there =
        checkpoint_->contains(piece.tensor) && piece.index.value_or(0) < checkpoint_->info(piece.tensor).shape[0];
    for (auto& name : there ? all_of(weight) : std::vector<std::string>()) names.push_back(std::move(name));
    return there;
  };
  for (std::int64_t e = 0; add(module + ".w2_list." + std::to_string(e)); ++e)
    add(module + ".w13_list." + std::to_string(e));
  return names;
}

std::vector<std::string> NamesInCheckpoint::everything() const {
  std::vector<std::string> names;
  for (const auto& tensor : checkpoint_->names()) names.push_back(stem_of(tensor));
  return names;
}

std::span<const ExpertFamily> expert_families() { return kFamilies; }

const ExpertFamily* expert_family(const io::Json& config) {
  if (const auto* family = find(config); family != nullptr || !config.is_object()) return family;
  for (const auto& [key, part] : config.items())
    if (const auto* family = key.ends_with("_config") ? expert_family(part) : nullptr; family != nullptr) return family;
  return nullptr;
}

std::optional<ExpertInMemory> expert_in_memory(const std::string& module) {
  const std::string kExperts = ".block_sparse_moe.experts.";
  const auto at = module.rfind(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const std::string rest = module.substr(at + kExperts.size());  // "3.w1"
  const auto dot = rest.find('.');
  const std::string number = rest.substr(0, dot), weight = dot == std::string::npos ? "" : rest.substr(dot + 1);
  if (!is_number(number) || (weight != "w1" && weight != "w2" && weight != "w3")) return std::nullopt;
  const std::string mixture = module.substr(0, at + kExperts.size()) + "moe_op";
  return ExpertInMemory{mixture, mixture + std::string(weight == "w2" ? kDownList : kUpList) + number};
}

std::optional<ExpertWeight> expert_weight(const std::string& name) {
  for (const std::string_view list : {kUpList, kDownList}) {
    const auto at = name.rfind(list);
    if (at == std::string::npos) continue;
    const std::string number = name.substr(at + list.size());
    if (!is_number(number) || number.size() > 6) continue;
    return ExpertWeight{name.substr(0, at), static_cast<std::size_t>(std::stoul(number)), list == kDownList};
  }
  return std::nullopt;
}

}  // namespace fp8::quant
