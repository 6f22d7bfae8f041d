// SPDX-License-Identifier: Apache-2.0
// The configurations that INC, Optimum Habana and vllm-gaudi publish, each used as its project uses it: the model is
// measured, or quantized on load, from the working directory that its relative paths need.
#include "configs/published_configs.h"

#include <set>

#include "e2e/e2e.h"
#include "fp8/configs/configs.h"

namespace fp8::e2e {
namespace {

/// A folder of its own as working directory, for as long as this lives.
class WorkingDirectory {
 public:
  WorkingDirectory() : before_(std::filesystem::current_path()) { std::filesystem::current_path(folder_.path()); }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  test::TempDir folder_;
  std::filesystem::path before_;
};

test::Run evaluate(const io::Json& config, bool reference) {
  write_file("q.json", config.dump());
  Arguments arguments = args("evaluate --json --model $DEMO --data $HELDOUT --samples 1 --seq-len 32");
  if (reference) arguments.insert(arguments.end(), {"--reference", demo_model()});
  return fp8(arguments, {{"QUANT_CONFIG", "q.json"}});
}

/// Measures everything, unless that is what stands there already.
void measure_once(const std::string& prefix, std::set<std::string>& measured) {
  if (measured.insert(prefix).second) json_of(evaluate({{"mode", "MEASURE"}, {"dump_stats_path", prefix}}, false));
}

/// Quantized means: other numbers than the model's, and not far from them.
void expect_quantized(const io::Json& result) {
  EXPECT_GT(result.value("kl", -1.0), 1e-7);
  EXPECT_LT(result.value("kl", 1e9), 1.0);  // a single scale for every tensor is rough
}

void expect_measures(const io::Json& config) {
  json_of(evaluate(config, false));
  const std::string prefix = config.value("dump_stats_path", "stats");
  const io::Json file = io::read_json(prefix + "_hooks_maxabs.json");
  EXPECT_TRUE(file["Nodes"].contains("model.layers.0.self_attn.q_proj"));
  EXPECT_EQ(file["Nodes"]["model.layers.0.self_attn.q_proj"].contains("outputs"),
            config.value("measure_exclude", "OUTPUT") == "NONE");
}

/// A config that leaves the choice to the command.
void expect_measured_and_quantized(const io::Json& config) {
  write_file("q.json", config.dump());
  const auto folder = std::filesystem::path(config["dump_stats_path"].get<std::string>()).parent_path().string();
  std::filesystem::remove_all(folder);
  json_of(fp8("measure --json --model $DEMO --data $CALIB --samples 1 --config q.json --out {}", folder));
  json_of(fp8("quantize --json --model $DEMO --config q.json --out fp8"));
  expect_quantized(json_of(fp8("evaluate --json --model fp8 --reference $DEMO --data $HELDOUT --samples 1")));
}

TEST(PublishedConfigs, EachRunsOrIsRefusedWithTheReason) {
  const WorkingDirectory directory;
  const auto configs = test::published_configs();
  ASSERT_EQ(configs.size(), 71u);
  std::set<std::string> measured;  // prefixes
  for (const auto& published : configs) {
    SCOPED_TRACE(published.name());
    const auto& keys = published.keys;
    if (const auto refused = test::refused_configs().find(published.name()); refused != test::refused_configs().end()) {
      expect_refused(evaluate(keys, false), {refused->second});
      continue;
    }
    const configs::QuantConfig config = configs::parse_quant_config(keys, "q.json");
    if (config.mode == configs::QuantMode::MEASURE) {
      expect_measures(keys);
      measured.erase(keys.value("dump_stats_path", "stats"));
    } else if (config.mode == configs::QuantMode::AUTO) {
      expect_measured_and_quantized(keys);
      measured.clear();
    } else {
      if (config.needs_measurements()) measure_once(keys["dump_stats_path"].get<std::string>(), measured);
      expect_quantized(json_of(evaluate(keys, true)));
    }
  }
}

TEST(PublishedConfigs, AnEmptyPathIsRefusedWhereAFileIsNeeded) {
  const WorkingDirectory directory;
  expect_refused(evaluate({{"mode", "MEASURE"}, {"dump_stats_path", ""}}, false),
                 {"key 'dump_stats_path': found \"\", but mode MEASURE writes measurements there"});
  expect_refused(evaluate({{"mode", "QUANTIZE"}, {"dump_stats_path", ""}}, false),
                 {"key 'dump_stats_path': found \"\", but scale_method MAXABS_HW reads measurements there"});
  expect_refused(evaluate({{"mode", "LOAD"}, {"dump_stats_path", ""}}, false),
                 {"key 'dump_stats_path': found \"\", but mode LOAD reads scales there"});
  write_file("q.json", R"({"dump_stats_path": ""})");
  expect_quantize_refused(demo_model(), {"--config", std::filesystem::absolute("q.json").string()},
                          {"key 'dump_stats_path': found \"\""});
  // fp8 measure takes the folder from --out, fp8 quantize from --measurements, where it reads any.
  json_of(fp8("measure --json --model $DEMO --data $CALIB --samples 1 --config q.json --out stats"));
  EXPECT_TRUE(std::filesystem::exists("stats/inc_output_hooks_maxabs.json"));
  json_of(fp8("quantize --json --model $DEMO --config q.json --measurements stats --out fp8"));
  write_file("q.json", R"({"dump_stats_path": "", "scale_method": "maxabs_pcs_pow2", )"
                       R"("dynamic_quantization": "True", "calibration_sample_interval": "50"})");
  json_of(fp8("quantize --json --model $DEMO --config q.json --out fp8 --overwrite"));
}

}  // namespace
}  // namespace fp8::e2e
