// SPDX-License-Identifier: Apache-2.0
// What each reader would make of a checkpoint: outputs of every form load; each rule of the header, broken by hand, is
// found with its module.
#include "fp8/quant/checkpoint/reader_check.h"

#include "fp8/quant/names/expert_weights.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "quant/forms/form_checkpoint.h"
#include "support/enum_names.h"
#include "support/golden.h"

namespace fp8::quant {
namespace {

using namespace test;
using io::Json;

struct Output {
  TempDir dir;
  explicit Output(const std::string& form, bool tied = false, Granularity weights = Granularity::channel) {
    write_llama(dir / "m", small_llama(at::kFloat, tied), tied);
    CheckpointOptions o;
    o.form = form;
    o.plan.weights = weights;
    o.plan.activations = form == "inc-vllm" ? ActivationScaling::none : ActivationScaling::dynamic_token;
    quantize_checkpoint(dir / "m", dir / "out", o);
  }
  void change(const std::function<void(io::Json&)>& f) const {
    auto config = io::read_json(dir / "out/config.json");
    f(config);
    io::write_json(dir / "out/config.json", config);
  }
  std::vector<ReaderVerdict> verdicts() const { return check_readers(dir / "out"); }
};

/// All problems of a reader, one line each.
std::string problems(const std::vector<ReaderVerdict>& verdicts, const std::string& reader) {
  for (const auto& v : verdicts) {
    if (v.reader != reader) continue;
    std::string text;
    for (const auto& p : v.problems) text += p + "\n";
    return text;
  }
  return "no such reader";
}

std::string of_transformers(const fs::path& folder) { return problems(check_readers(folder), "transformers"); }
std::string of_vllm(const fs::path& folder) { return problems(check_readers(folder), "vLLM"); }

TEST(ReaderCheck, ReadersHaveNames) { test::check_names<CheckpointReader>(); }

TEST(ReaderCheck, WhatIsWrittenLoads) {
  for (const bool tied : {false, true}) {
    const Output ct("compressed-tensors", tied);
    EXPECT_EQ(problems(ct.verdicts(), "transformers"), "") << tied;
    EXPECT_EQ(problems(ct.verdicts(), "vLLM"), "") << tied;
    EXPECT_EQ(problems(Output("fp8", tied, Granularity::tensor).verdicts(), "vLLM"), "") << tied;
    EXPECT_EQ(problems(Output("modelopt", tied, Granularity::channel).verdicts(), "vLLM"), "") << tied;
    EXPECT_EQ(problems(Output("inc", tied).verdicts(), "neural-compressor"), "") << tied;
  }
}

TEST(ReaderCheck, AKeptModuleThatNothingNamesIsFound) {
  for (const bool tied : {false, true}) {  // of a tied model the file has no lm_head
    const Output out("compressed-tensors", tied);
    out.change([](io::Json& c) { c["quantization_config"]["ignore"] = io::Json::array(); });
    EXPECT_EQ(problems(out.verdicts(), "transformers"),
              "lm_head: in high precision, and no entry of the list of kept modules fits it: its reader would look for "
              "a scale\n");
    EXPECT_THAT(problems(out.verdicts(), "vLLM"), HasSubstr("lm_head: in high precision"));
  }
}

TEST(ReaderCheck, AnEntryThatIsTooWideIsFound) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) { c["quantization_config"]["ignore"] = {"lm_head", "re:.*k_proj"}; });
  const std::string text = problems(out.verdicts(), "transformers");
  EXPECT_THAT(text, HasSubstr("model.layers.0.self_attn.k_proj: in fp8, and the entry 're:.*k_proj' keeps it"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(ReaderCheck, AModuleThatIsNoTargetIsFound) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) {
    c["quantization_config"]["config_groups"]["group_0"]["targets"] = {"re:.*self_attn.*",
                                                                       "model.layers.0.mlp.up_proj"};
  });
  const std::string text = problems(out.verdicts(), "transformers");
  EXPECT_THAT(text, HasSubstr("mlp.gate_proj: in fp8, and no target"));
  EXPECT_THAT(text, HasSubstr("mlp.down_proj: in fp8, and no target"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text << "what stays and is no target needs no entry";
}

TEST(ReaderCheck, HalvedProductsAndTablesOfCodesAreFound) {
  const std::string layer = "model.layers.0.self_attn.";
  const Output like("compressed-tensors");
  auto quantization = io::read_json(like.dir / "out/config.json")["quantization_config"];
  quantization["ignore"] = {layer + "k_proj", layer + "v_proj", "lm_head"};
  std::vector<HandTensor> tensors;
  for (const std::string& module : {layer + "q_proj", std::string("model.embed_tokens")}) {
    tensors.push_back(codes(module, 4, 4));
    tensors.push_back(f32(module + ".weight_scale", {4, 1}, {1, 1, 1, 1}));
  }
  for (const char* kept : {"k_proj", "v_proj"})
    tensors.push_back(f32(layer + kept + ".weight", {4, 4}, std::vector<float>(16, 1.0f)));
  const HandCheckpoint hand(quantization, tensors);
  const auto verdicts = check_readers(hand.path());
  EXPECT_THAT(problems(verdicts, "vLLM"),
              HasSubstr(layer + "q_proj: in fp8, and " + layer + "k_proj, which runs as one product with it, is not"));
  EXPECT_EQ(problems(verdicts, "transformers"),
            "model.embed_tokens: in fp8, and readers have no Linear of this name: its codes would be read as values\n");
}

TEST(ReaderCheck, ExpertsAreSeenWithEachReadersEyes) {
  const std::string moe = "model.layers.0.block_sparse_moe.";
  const Output like("compressed-tensors");
  auto config = io::read_json(like.dir / "out/config.json");
  config["model_type"] = "granitemoe";  // transformers has stacks of these only
  const HandCheckpoint single(nullptr, {codes(moe + "experts.0.down_proj", 4, 4),
                                        f32(moe + "experts.0.down_proj.weight_scale", {4, 1}, {1, 1, 1, 1})});
  single.write("config.json", config);
  EXPECT_EQ(of_vllm(single.path()), "");
  EXPECT_THAT(of_transformers(single.path()), HasSubstr(moe + "experts.0.down_proj: "));
  config["model_type"] = "qwen3_moe";
  const std::string stack = "model.layers.0.mlp.experts.down_proj";
  const HandCheckpoint stacked(nullptr, {codes("model.layers.0.self_attn.o_proj", 4, 4),
                                         f32("model.layers.0.self_attn.o_proj.weight_scale", {4, 1}, {1, 1, 1, 1}),
                                         f32(stack, {1, 2, 2}, {1, 1, 1, 1})});
  stacked.write("config.json", config);
  EXPECT_EQ(of_vllm(stacked.path()),
            "model.layers.0.mlp.experts: a stack of experts in high precision, and no entry of the list of kept "
            "modules fits it\n");
  config["quantization_config"]["ignore"] = {"lm_head", "model.layers.0.mlp.experts"};
  stacked.write("config.json", config);
  EXPECT_EQ(of_vllm(stacked.path()), "");
}

TEST(ReaderCheck, ScalesThatAReaderHasNot) {
  const auto verdicts = Output("fp8", false, Granularity::tensor).verdicts();
  EXPECT_EQ(problems(verdicts, "vLLM"), "");
  EXPECT_THAT(problems(verdicts, "transformers"), HasSubstr("transformers reads weight_scale_inv in this form"));
  const std::string expert = "model.layers.0.mlp.experts.0.down_proj";
  const Output like("compressed-tensors");  // by hand: blocks of 2 x 2
  auto config = io::read_json(like.dir / "out/config.json");
  config["model_type"] = "qwen3_moe";
  auto& weights = config["quantization_config"]["config_groups"]["group_0"]["weights"];
  weights["strategy"] = "block";
  weights["block_structure"] = {2, 2};
  auto& inputs = config["quantization_config"]["config_groups"]["group_0"]["input_activations"];
  inputs["strategy"] = "group";
  inputs["group_size"] = 2;
  const HandCheckpoint blocks(nullptr, {codes(expert, 4, 4), f32(expert + ".weight_scale", {2, 2}, {1, 1, 1, 1})});
  blocks.write("config.json", config);
  EXPECT_THAT(of_transformers(blocks.path()), HasSubstr("can't join experts with scales per block"));
  config["model_type"] = "llama4_text";  // which has a list of them instead
  blocks.write("config.json", config);
  EXPECT_THAT(of_transformers(blocks.path()), Not(HasSubstr("join")));
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {2, 2}}};
  const HandCheckpoint fine(nullptr, {codes(expert, 4, 4), f32(expert + ".weight_scale_inv", {2, 2}, {1, 1, 1, 1})});
  fine.write("config.json", config);
  EXPECT_THAT(of_transformers(fine.path()), HasSubstr("single experts of this family in compressed-tensors alone"));
  config["model_type"] = "qwen3_moe";
  fine.write("config.json", config);
  EXPECT_THAT(of_transformers(fine.path()), Not(HasSubstr("experts of")));
  const std::string joined = "model.layers.0.mlp.ff_proj";  // transformers makes two modules of it
  config["model_type"] = "molmo2";
  const HandCheckpoint split(nullptr, {codes(joined, 4, 4), f32(joined + ".weight_scale_inv", {2, 2}, {1, 1, 1, 1})});
  split.write("config.json", config);
  EXPECT_THAT(of_transformers(split.path()), HasSubstr(joined + ": transformers splits it"));
}

/// compressed-tensors' config says of caches that there are some; Llama 4's vision attention takes one in transformers,
/// and attention without a projection of keys takes none.
TEST(ReaderCheck, ScalesOfCachesThatTransformersMissesOrDrops) {
  const std::string attention = "model.layers.0.self_attn.";
  const Output like("compressed-tensors");
  auto config = io::read_json(like.dir / "out/config.json");
  config["quantization_config"]["kv_cache_scheme"] = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"symmetric", true}, {"dynamic", false}};
  const auto found = [&](const std::string& projection, const char* type) {
    const HandCheckpoint hand(nullptr, {codes(attention + projection, 4, 4),
                                        f32(attention + projection + ".weight_scale", {4, 1}, {1, 1, 1, 1}),
                                        f32(attention + "k_scale", {1}, {1}), f32(attention + "v_scale", {1}, {1})});
    config["model_type"] = type;
    hand.write("config.json", config);
    return of_transformers(hand.path());
  };
  EXPECT_THAT(found("k_proj", "llama4"), HasSubstr("kv_cache_scheme: "));
  EXPECT_THAT(found("k_proj", "llama4_text"), Not(HasSubstr("kv_cache_scheme: ")));
  EXPECT_THAT(found("k_proj", "opt"), HasSubstr("no scales of caches in this family"));
  EXPECT_THAT(found("k_proj", "qwen3"), Not(HasSubstr("scales of caches")));
  EXPECT_THAT(found("query_key_value", "falcon"), HasSubstr("self_attn: transformers takes scales of caches beside"));
}

/// By the sources of vLLM 0.32 (compressed_tensors.py, compressed_tensors_moe_w8a8_fp8.py, fp8.py, modelopt.py,
/// kernels/linear) and transformers 5.23 (integrations/compressed_tensors.py, finegrained_fp8.py).
TEST(ReaderCheck, SchemesOfEachFormAndPlace) {
  const auto said_by = [](CheckpointReader reader, const std::string& line) {
    std::istringstream words(line);  // "FORM, PLACE, WEIGHTS, ACTIVATIONS", and the size of blocks that are not 128
    std::string form_name, place, weights, activations, size = "128";
    for (auto* word : {&form_name, &place, &weights, &activations, &size}) std::getline(words >> std::ws, *word, ',');
    const std::int64_t n = size.empty() ? 128 : std::stoll(size);
    const auto& form = form_named(form_name);
    if (!form.is_read_by(reader)) return std::string("not read");
    const StoredWeight weight{
        .spec = {"model.layers.0.mlp.experts.0.up_proj", 256, 256,
                 scheme_of(*parse_enum<Granularity>(weights), *parse_enum<ActivationScaling>(activations), {n, n})}};
    return form.problem_of_reader(reader, weight, place == "joined" ? WeightPlace::joined : WeightPlace::linear);
  };
  EXPECT_GOLDEN(said_by(CheckpointReader::vllm, text), " vLLM");
  EXPECT_GOLDEN(said_by(CheckpointReader::transformers, text), " transformers");
}

TEST(ReaderCheck, WhatVllmRefusesIsWarnedOfInTheSameWords) {
  TempDir dir;
  write_llama(dir / "m", small_llama(at::kFloat));
  CheckpointOptions o;
  set_weights(o.plan, WeightWord::block);
  o.plan.block = {4, 4};
  const auto report = quantize_checkpoint(dir / "m", dir / "out", o);
  std::string found = of_vllm(dir / "out");
  ASSERT_THAT(found, HasSubstr("found 4x4"));
  found.pop_back();
  EXPECT_THAT(report.warnings, Contains("not for vLLM 0.32: " + found));
}

/// transformers joins the experts that it has stacked, and has those of Llama 4 as modules; vLLM joins all.
TEST(ReaderCheck, ExpertsAreJoinedByFamily) {
  const auto place = [](CheckpointReader reader, const char* type, const std::string& module) {
    return place_on_load(reader, module, expert_family(Json{{"model_type", type}}));
  };
  const std::string expert = "model.layers.0.mlp.experts.3.up_proj",
                    shared = "model.layers.0.mlp.shared_experts.up_proj";
  EXPECT_EQ(place(CheckpointReader::transformers, "qwen3_moe", expert), WeightPlace::joined);
  EXPECT_EQ(place(CheckpointReader::transformers, "llama4_text", expert), WeightPlace::linear);
  EXPECT_EQ(place(CheckpointReader::transformers, "llama", expert), WeightPlace::linear);
  EXPECT_EQ(place(CheckpointReader::vllm, "llama4_text", expert), WeightPlace::joined);
  for (const auto reader : {CheckpointReader::transformers, CheckpointReader::vllm})
    EXPECT_EQ(place(reader, "qwen3_moe", shared), WeightPlace::linear);
}

TEST(ReaderCheck, MxIsForModelsInBfloat16) {
  TempDir dir;
  auto tensors = small_llama(at::kBFloat16);
  for (auto& [name, t] : tensors)
    if (t.dim() == 2 && t.size(1) == 36) t = torch::cat({t, t}, 1).slice(1, 0, 64).contiguous();
  write_llama(dir / "m", tensors);
  CheckpointOptions o;
  set_weights(o.plan, WeightWord::mx);
  for (const char* form : {"compressed-tensors", "modelopt"}) {
    o.form = form;
    quantize_checkpoint(dir / "m", dir / form, o);
    for (const auto& verdict : check_readers(dir / form)) EXPECT_THAT(verdict.problems, IsEmpty()) << form;
  }
  auto config = io::read_json(dir / "compressed-tensors/config.json");
  const auto found = [&] {
    io::write_json(dir / "compressed-tensors/config.json", config);
    EXPECT_EQ(of_vllm(dir / "compressed-tensors"), "");
    return of_transformers(dir / "compressed-tensors");
  };
  config["torch_dtype"] = "float16";
  EXPECT_THAT(found(), HasSubstr("the model is float16"));
  config.erase("torch_dtype");
  EXPECT_EQ(found(), "") << "its tensors are bfloat16";
  config["dtype"] = "float32";
  EXPECT_THAT(found(), HasSubstr("the model is float32"));
}

TEST(ReaderCheck, WhatStandsOutsideOfTheBlocksIsPlainToVllm) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) { c["num_hidden_layers"] = 1; });
  EXPECT_THAT(problems(out.verdicts(), "vLLM"), Not(HasSubstr("mlp1")));
  const HandCheckpoint hand(io::read_json(out.dir / "out/config.json")["quantization_config"],
                            {codes("mlp1.3", 4, 4), f32("mlp1.3.weight_scale", {4, 1}, {1, 1, 1, 1}),
                             f32("model.layers.0.self_attn.o_proj.weight", {4, 4}, std::vector<float>(16, 1.0f))});
  auto config = io::read_json(hand.path() / "config.json");
  config.update({{"model_type", "qwen3"}, {"num_hidden_layers", 1}, {"vocab_size", 8}});
  hand.write("config.json", config);
  EXPECT_THAT(of_vllm(hand.path()), HasSubstr("mlp1.3: in fp8, outside of the language model's blocks"));
}

TEST(ReaderCheck, WhatIsMissingAndWhoIsNotKnown) {
  const Output out("compressed-tensors");
  out.change([](io::Json& c) { c["architectures"] = {"LlamaForCausalLM"}; });
  for (const auto& v : out.verdicts()) EXPECT_EQ(v.loads(), true) << v.reader << ": " << v.not_known;
  out.change([](io::Json& c) { c["num_hidden_layers"] = 9; });
  for (const auto& v : out.verdicts()) {
    EXPECT_THAT(problems(out.verdicts(), v.reader), HasSubstr(": missing, of the blocks that config.json counts"));
    EXPECT_EQ(v.loads(), false);
  }
  out.change([](io::Json& c) { c["model_type"] = "nobody_knows"; });
  for (const auto& v : out.verdicts()) EXPECT_THAT(v.not_known, HasSubstr("is of model_type 'nobody_knows'"));
}

TEST(ReaderCheck, AVerdictSaysWhoseRulesItUsedAndWhomTheyDoNotKnow) {
  const Output out("compressed-tensors");
  for (const auto& v : out.verdicts()) {
    EXPECT_EQ(v.rules, v.reader + (v.reader == "vLLM" ? " 0.32.0" : " 5.23.0"));
    EXPECT_EQ(v.release, v.rules.substr(0, v.rules.size() - 2));
  }
  EXPECT_EQ(release_of(CheckpointReader::neural_compressor), rules_of(CheckpointReader::neural_compressor));
  const auto loads = [&](const char* type, const Json& classes) {
    out.change([&](io::Json& c) { c.update({{"model_type", type}, {"architectures", classes}}); });
    std::string text;
    for (const auto& v : out.verdicts()) text += !v.loads().has_value() ? "?" : *v.loads() ? "+" : "-";
    return text;
  };
  EXPECT_EQ(loads("llama", {"LlamaForCausalLM"}), "++");
  EXPECT_EQ(loads("llama", {"LlamaForSequenceClassification"}), "++") << "vLLM puts a scoring head on the body";
  EXPECT_EQ(loads("llama", {"ForCausalLM"}), "+?");
  EXPECT_EQ(loads("olmo2", {"Olmo2ForCausalLM"}), "+?") << "vLLM runs it through transformers' class";
  EXPECT_EQ(loads("internlm2", {"InternLM2ForCausalLM"}), "?+") << "transformers has it as remote code alone";
  EXPECT_EQ(loads("llama", Json()), "+?");
}

TEST(ReaderCheck, HighPrecisionIsRefused) {
  const Output out("compressed-tensors");
  EXPECT_REFUSED(check_readers(out.dir / "m"), (out.dir / "m").string(), "expected an fp8 checkpoint");
}

// What a checkpoint lacks of what its class needs, and names that no class has.

struct Model {
  test::TempDir dir;
  Json config = {{"model_type", "qwen3"},
                 {"architectures", {"Qwen3ForCausalLM"}},
                 {"vocab_size", 32},
                 {"num_hidden_layers", 3},
                 {"tie_word_embeddings", false}};
  std::map<std::string, std::vector<std::int64_t>> shapes = {
      {"model.embed_tokens", {32, 16}}, {"lm_head", {32, 16}}, {"model.norm", {16}}};

  explicit Model(int layers = 3) {
    for (int i = 0; i < layers; ++i) {
      const std::string block = "model.layers." + std::to_string(i) + ".";
      for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj"}) shapes[block + name] = {16, 16};
      shapes[block + "input_layernorm"] = {16};
    }
  }
  io::Checkpoint checkpoint() const {
    test::NamedTensors tensors;
    for (const auto& [name, shape] : shapes) tensors.emplace_back(name + ".weight", at::ones(shape, at::kBFloat16));
    test::write_tensors(dir / "in", tensors);
    test::write_text(dir / "in/config.json", config.dump());
    return io::Checkpoint(dir / "in");
  }
  std::vector<std::string> incomplete() const {
    const auto c = checkpoint();
    return incomplete_parts(c, config, CheckpointModules(c, config));
  }
  /// The message of require_complete(), without the folder; its warning where it throws nothing.
  std::string verdict() const {
    const auto c = checkpoint();
    std::vector<std::string> warnings;
    const auto error =
        test::error_of<io::Error>([&] { warnings = require_complete(c, config, CheckpointModules(c, config)); });
    if (error.empty()) return warnings.empty() ? "" : "warning: " + warnings.front();
    return error.substr((dir / "in").string().size() + 2);
  }
};

TEST(Completeness, AWholeModelIsWhole) {
  EXPECT_THAT(Model().incomplete(), IsEmpty());
  Model tied;
  tied.config["tie_word_embeddings"] = true;
  tied.shapes.erase("lm_head");
  EXPECT_THAT(tied.incomplete(), IsEmpty());
  // Of one tensor with two names a writer may have kept the head's, which vLLM skips where the config ties.
  tied.shapes["lm_head"] = tied.shapes["model.embed_tokens"];
  tied.shapes.erase("model.embed_tokens");
  EXPECT_THAT(tied.incomplete(), ElementsAre(HasSubstr("embed_tokens.weight: missing, and the head is tied to it")));
}

TEST(Completeness, WhatIsMissing) {
  const auto without = [](const std::string& name) {
    Model m;
    EXPECT_EQ(m.shapes.erase(name), 1U);
    return m.incomplete();
  };
  EXPECT_THAT(without("model.layers.1.mlp.up_proj"),
              ElementsAre("model.layers.1.mlp.up_proj.weight: missing, 2 blocks like it have it"));
  EXPECT_THAT(without("model.layers.2.input_layernorm"), ElementsAre(HasSubstr("2.input_layernorm.weight")));
  EXPECT_THAT(without("model.norm"), ElementsAre(HasSubstr("model.norm.weight: missing")));
  EXPECT_THAT(without("lm_head"), ElementsAre(HasSubstr("lm_head.weight: missing, and not tied")));
  EXPECT_THAT(without("model.embed_tokens"), ElementsAre(HasSubstr("model.embed_tokens.weight: missing")));
  Model fewer(2);
  EXPECT_THAT(fewer.incomplete(), ElementsAre(HasSubstr("model.layers.2: missing")));
}

TEST(Completeness, WhatIsLeftOver) {
  Model more(4);
  EXPECT_THAT(more.incomplete(), ElementsAre("model.layers.3: left over, config.json counts 3 blocks"));
  more.shapes["model.layers.3.eh_proj"] = {16, 32};  // now a draft layer
  EXPECT_THAT(more.incomplete(), IsEmpty());
}

TEST(Completeness, SistersAreOfOneKind) {
  Model m(4);
  m.config["num_hidden_layers"] = 4;
  for (const char* i : {"1", "3"}) m.shapes.erase("model.layers." + std::string(i) + ".self_attn.q_proj");
  EXPECT_THAT(m.incomplete(), ElementsAre(HasSubstr("model.layers.1.self_attn.q_proj.weight: missing")));
  m.config["layer_types"] = {"full", "shared", "full", "shared"};
  EXPECT_THAT(m.incomplete(), IsEmpty());
  m.config.erase("layer_types");
  m.shapes["model.layers.1.self_attn.q_proj"] = {16, 16};
  m.shapes.erase("model.layers.2.self_attn.q_proj");
  m.config["num_kv_shared_layers"] = 2;
  EXPECT_THAT(m.incomplete(), IsEmpty());
}

TEST(Completeness, WhatTheFirstBlockAloneHas) {
  Model m(2);
  m.config["num_hidden_layers"] = 2;
  m.shapes["model.layers.0.pre_norm"] = {16};
  EXPECT_THAT(m.incomplete(), IsEmpty());
  m.shapes["model.layers.0.mlp.gate_proj"] = {16, 16};
  EXPECT_THAT(m.incomplete(), ElementsAre(HasSubstr("model.layers.1.mlp.gate_proj.weight: missing with 1 more")));
}

TEST(Completeness, ATypeThatSaysNothingOfTying) {
  for (const auto& [type, whole] : {std::pair("qwen3", false), std::pair("gemma2", true)}) {
    Model m;
    m.config["model_type"] = type;
    m.config.erase("tie_word_embeddings");
    m.shapes.erase("lm_head");
    EXPECT_EQ(m.incomplete().empty(), whole) << type;
  }
}

TEST(Completeness, NamesThatNoClassHas) {
  for (const auto& [part, name, said] :
       {std::tuple("_orig_mod", "_orig_mod.model.norm", "_orig_mod.state_dict()"),
        std::tuple("_fsdp_wrapped_module", "model.layers.0._fsdp_wrapped_module.mlp.up_proj", "full state dict"),
        std::tuple("_checkpoint_wrapped_module", "model._checkpoint_wrapped_module.norm", "state dict"),
        std::tuple("base_layer", "model.layers.0.q_proj.base_layer", "merge_and_unload()"),
        std::tuple("lora_A", "model.layers.0.q_proj.lora_A.default", "merge_and_unload()")}) {
    Model m;
    m.shapes[name] = {16};
    EXPECT_THAT(m.verdict(), HasSubstr(std::string("'") + part + "'"));
    EXPECT_THAT(m.verdict(), HasSubstr(said));
  }
  Model parallel;
  auto shapes = std::move(parallel.shapes);
  for (const auto& [name, shape] : shapes) parallel.shapes["module." + name] = shape;
  EXPECT_THAT(parallel.verdict(), HasSubstr("save model.module.state_dict()"));
}

TEST(Completeness, AnUnknownFamilyIsWarnedOf) {
  Model m;
  m.config["model_type"] = "nobody_knows";
  m.shapes.erase("model.layers.1.mlp.up_proj");
  EXPECT_THAT(m.verdict(), HasSubstr("warning: model.layers.1.mlp.up_proj.weight: missing"));
}

}  // namespace
}  // namespace fp8::quant
