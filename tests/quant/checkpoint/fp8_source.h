// SPDX-License-Identifier: Apache-2.0
// fp8 checkpoints made by hand, in the compressed-tensors form or the fp8 form with E8M0 scales: random codes and
// scales that the test knows, so that nothing of the library made what it is compared with.
#pragma once

#include "fp8/quant/checkpoint/reform.h"
#include "quant/checkpoint/small_checkpoint.h"

namespace fp8::test {

inline quant::Scheme make_scheme(recipes::Granularity weights, quant::ActivationScaling activations,
                                 std::int64_t block = 128, bool power_of_two = false) {
  quant::Scheme s;
  s.weights = weights;
  s.activations = activations;
  s.block = {block, block};
  s.power_of_two = power_of_two;
  return s;
}

inline quant::ConvertOptions to(recipes::FloatType type) { return {.type = type}; }
inline quant::ConvertOptions to(const std::string& form) { return {.form = form}; }

struct SourceWeight {
  at::Tensor codes;   ///< [N, K] kFloat8_e4m3fn
  at::Tensor scale;   ///< as stored: [1], [N, 1] or the grid of blocks, f32
  at::Tensor spread;  ///< [N, K] f32: the scale of every element
  float input = 0;    ///< static: the activation's scale_inv

  at::Tensor values() const { return codes.to(at::kFloat) * spread; }
};

struct Fp8Source {
  std::map<std::string, SourceWeight> weights;
  NamedTensors kept;  ///< what is not in fp8
  std::map<std::string, std::pair<float, float>> kv;
};

inline const char* const kConfigHead =
    "{\n  \"model_type\": \"llama\",\n  \"rms_norm_eps\": 1e-05,\n  \"torch_dtype\": \"bfloat16\",\n  \"rope_theta\": "
    "10000.0,\n";

/// Random finite codes up to max, of both signs, some zero; at least one of each row is large.
inline at::Tensor random_codes(std::int64_t rows, std::int64_t cols, double max) {
  return torch::randn({rows, cols}).mul(max / 3).clamp(-max, max).to(at::kFloat8_e4m3fn);
}

/// [grid rows, grid cols] -> [rows, cols], each repeated over its block.
inline at::Tensor spread_grid(const at::Tensor& grid, const quant::Block& block, std::int64_t rows, std::int64_t cols) {
  return grid.repeat_interleave(block.rows, 0)
      .repeat_interleave(block.cols, 1)
      .slice(0, 0, rows)
      .slice(1, 0, cols)
      .contiguous();
}

inline SourceWeight random_weight(std::int64_t rows, std::int64_t cols, const quant::Scheme& s) {
  using recipes::Granularity;
  SourceWeight w{.codes = random_codes(rows, cols, s.dialect == recipes::Dialect::gaudi2 ? 240 : 448)};
  const auto ceil = [](std::int64_t n, std::int64_t d) { return (n + d - 1) / d; };
  const quant::Block block = s.weights == Granularity::tensor    ? quant::Block{rows, cols}
                             : s.weights == Granularity::channel ? quant::Block{1, cols}
                                                                 : s.block;
  at::Tensor grid = torch::rand({ceil(rows, block.rows), ceil(cols, block.cols)}) * 0.01 + 1e-5;
  if (s.power_of_two) grid = torch::exp2(torch::floor(torch::log2(grid)));
  w.spread = spread_grid(grid, block, rows, cols);
  w.scale = s.weights == Granularity::tensor ? grid.reshape({1}) : grid;
  w.input = 0.01f + 0.001f * static_cast<float>(rows);
  return w;
}

inline io::Json source_arguments(const char* strategy, bool dynamic, const quant::Scheme& s) {
  io::Json a = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", strategy}, {"dynamic", dynamic}};
  if (std::string(strategy) == "block") a["block_structure"] = {s.block.rows, s.block.cols};
  if (std::string(strategy) == "group") a["group_size"] = s.block.cols;
  return a;
}

inline io::Json source_config(const quant::Scheme& s, bool kv) {
  using quant::ActivationScaling;
  io::Json group = {{"targets", {"Linear"}},
                    {"weights", source_arguments(name_of(s.weights), false, s)},
                    {"input_activations", nullptr}};
  if (s.activations == ActivationScaling::static_tensor)
    group["input_activations"] = source_arguments("tensor", false, s);
  if (s.activations == ActivationScaling::dynamic_token)
    group["input_activations"] = source_arguments("token", true, s);
  if (s.activations == ActivationScaling::dynamic_group)
    group["input_activations"] = source_arguments("group", true, s);
  io::Json config = {{"quant_method", "compressed-tensors"},
                     {"format", "float-quantized"},
                     {"quantization_status", "compressed"},
                     {"config_groups", {{"group_0", group}}},
                     {"ignore", {"lm_head"}}};
  config["kv_cache_scheme"] = kv ? source_arguments("tensor", false, s) : io::Json(nullptr);
  return config;
}

inline void write_e8m0(const std::filesystem::path& folder, const NamedTensors& tensors) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  std::vector<at::Tensor> data;
  for (const auto& [name, t] : tensors) {
    const bool scale = name.find("_scale_inv") != std::string::npos;
    entries.push_back({name, scale ? io::DType::F8_E8M0 : file_type(t.scalar_type()), t.sizes().vec()});
    data.push_back(scale ? torch::log2(t).add(127).to(at::kByte) : t.contiguous());
  }
  std::filesystem::create_directories(folder);
  io::SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (std::size_t i = 0; i < entries.size(); ++i)
    writer.write(entries[i].name, data[i].const_data_ptr(), 0, data[i].nbytes());
  writer.commit();
}

/// A Llama of one layer with hidden size 2 * unit; every linear but lm_head in fp8. s.power_of_two: the fp8 form with
/// E8M0 scales.
inline Fp8Source write_fp8_source(const std::filesystem::path& folder, const quant::Scheme& s, std::int64_t unit,
                                  bool kv = false, std::uint64_t seed = 7) {
  torch::manual_seed(seed);
  Fp8Source source;
  NamedTensors all;
  const std::string layer = "model.layers.0.";
  const std::int64_t h = 2 * unit;
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> shapes = {
      {"self_attn.q_proj", {h, h}},    {"self_attn.k_proj", {unit, h}},  {"self_attn.v_proj", {unit, h}},
      {"self_attn.o_proj", {h, h}},    {"mlp.gate_proj", {3 * unit, h}}, {"mlp.up_proj", {3 * unit, h}},
      {"mlp.down_proj", {h, 3 * unit}}};
  for (const auto& [name, shape] : shapes) {
    const auto w = source.weights[layer + name] = random_weight(shape[0], shape[1], s);
    all.emplace_back(layer + name + ".weight", w.codes);
    all.emplace_back(layer + name + (s.power_of_two ? ".weight_scale_inv" : ".weight_scale"), w.scale);
    if (s.activations == quant::ActivationScaling::static_tensor)
      all.emplace_back(layer + name + ".input_scale", torch::tensor({w.input}));
  }
  source.kept = {{"model.embed_tokens.weight", torch::randn({50, h}).to(at::kBFloat16)},
                 {layer + "input_layernorm.weight", torch::randn({h})},
                 {layer + "self_attn.q_proj.bias", torch::randn({h}).to(at::kHalf)},
                 {"lm_head.weight", torch::randn({50, h}).to(at::kBFloat16)},
                 {"model.steps", torch::tensor({1, 2, 3}, at::kLong)}};
  all.insert(all.end(), source.kept.begin(), source.kept.end());
  if (kv) {
    source.kv[layer + "self_attn"] = {0.0375f, 0.0625f};
    all.emplace_back(layer + "self_attn.k_scale", torch::tensor({0.0375f}));
    all.emplace_back(layer + "self_attn.v_scale", torch::tensor({0.0625f}));
  }
  io::Json config = source_config(s, kv);
  if (s.power_of_two) {
    write_e8m0(folder, all);
    config = {{"quant_method", "fp8"},
              {"activation_scheme", "dynamic"},
              {"scale_fmt", "ue8m0"},
              {"weight_block_size", {s.block.rows, s.block.cols}},
              {"modules_to_not_convert", {"lm_head"}}};
  } else {
    write_tensors(folder, all);
  }
  write_text(folder / "config.json",
             std::string(kConfigHead) + "  \"quantization_config\": " + config.dump() + ",\n  \"last\": 1.50\n}\n");
  if (s.dialect != recipes::Dialect::ocp) {
    write_text(folder / "fp8.json", io::Json{{"tool", "test"},
                                             {"dialect", kernels::name_of(s.dialect)},
                                             {"convention", "own"},
                                             {"scale_method", "amax"},
                                             {"hp_dtype", nullptr},
                                             {"measurements", nullptr},
                                             {"skipped", io::Json::object()}}
                                        .dump());
  }
  write_text(folder / "tokenizer.json", "{}");
  return source;
}

}  // namespace fp8::test
