// SPDX-License-Identifier: Apache-2.0
// Each key of each family's config.json with each wrong value: the reader names the key and what it takes, or the key
// says nothing about the numbers and is listed here. Nothing is allocated before that: all of it runs in little memory.
#include <sys/resource.h>

#include <regex>

#include "support/throws_with.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using Pointer = io::Json::json_pointer;

constexpr std::uint64_t kMost = std::uint64_t{64} << 20;  // bytes of memory beyond what there is at the start

/// Keys that no logit of a forward without training depends on, or none of text alone; and where no reader of the same
/// model asks for them.
const std::regex kIdle(
    // labels, special tokens, towers
    "architectures|id2label/"
    ".*|label2id.*|.*pad_token_id|.*_token_(id|index)|vision_.*|projector_hidden_act|image_seq_length|mm_tokens_per_"
    "image|multimodal_projector_bias|.*mrope_section"
    // what transformers' classes do not read either
    "|no_bias|norm_type|attn_config/"
    "(alibi|attn_impl|attn_pdrop|attn_type|attn_uses_sequence_id)|norm_topk_prob:deepseek_v2.*|num_nextn_predict_"
    "layers|sinusoidal_pos_embds|.*rope_parameters/type"
    // read elsewhere, or of more than one type
    "|quantization_config.*|sliding_window_pattern:exaone4|num_experts:hunyuan_v1_moe");

/// Keys that are read where another one asks for them, and the fixtures that have the other one off.
const std::regex kUnasked(
    ".*(max_window_layers|layer_types|sliding_window):qwen.*|(multi_query|parallel_attn):falcon-40b|rope_scaling/"
    "factor:hunyuan_v1_dense|text_config/"
    "tie_word_embeddings:(gemma3|llava)|classifier_pooling:modernbert|decoder_bias:modernbert-classifier");

/// Now, of the process.
std::uint64_t bytes_mapped() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

/// While it lives, the process may map that much more; allocations beyond it throw.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t more) {
    getrlimit(RLIMIT_AS, &before_);
    rlimit limited = before_;
    limited.rlim_cur = bytes_mapped() + more;
    setrlimit(RLIMIT_AS, &limited);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_ = {};
};

/// Paths of all keys, below objects too; lists are values.
void collect(const io::Json& object, const std::string& at, std::vector<std::string>& paths) {
  for (const auto& [key, value] : object.items()) {
    paths.push_back(at + key);
    if (value.is_object()) collect(value, at + key + "/", paths);
  }
}

/// A value, and whether it is of no type that a config has there.
struct Wrong {
  std::string name;
  io::Json value;
  bool type = false;
};

std::vector<Wrong> wrong_values(const io::Json& good) {
  std::vector<Wrong> values = {{"null", nullptr},
                               {"string", "NaN", true},
                               {"negative", -1},
                               {"zero", 0},
                               {"2^40", std::uint64_t{1} << 40},
                               {"2^62", std::uint64_t{1} << 62},
                               {"2^64 - 1", std::numeric_limits<std::uint64_t>::max()},
                               {"1e300", 1e300},
                               {"-1e300", -1e300},
                               {"0.5", 0.5},
                               {"bool", !good.is_boolean() || !good.get<bool>()},
                               {"list", io::Json::array({good}), !good.is_array()},
                               {"empty list", io::Json::array()},
                               {"object", io::Json::object({{"a", 1}}), !good.is_object() && !good.is_null()},
                               {"long string", std::string(100'000, 'x'), true}};
  if (!good.is_array()) return values;
  io::Json shorter = good, other = good;
  if (!good.empty()) {
    shorter.erase(shorter.size() - 1);
    other.back() = "NaN";
    values.push_back({"one less", shorter});
    values.push_back({"a string in it", other, true});
  }
  return values;
}

struct ConfigValues : ::testing::TestWithParam<std::string> {
  void SetUp() override { fixture.write(folder.path()); }

  /// Reads, fits and checks the config and makes its model with placeholders; what was wrong, "" if nothing.
  std::string config_error(const io::Json& config) const {
    const io::Checkpoint checkpoint(folder.path());
    const MemoryLimit limit(kMost);
    return error_of<io::Error>([&] {
      const auto parsed = parse_config(config, "m/config.json");
      parsed.values->fit(checkpoint);
      parsed.values->check(checkpoint);
      const auto model = parsed.make();
      std::set<const void*> done;  // a tied weight comes up twice
      for (const auto& item : model->named_parameters())
        if (done.insert(item.value().unsafeGetTensorImpl()).second)
          check_parameter(checkpoint, item.key(), item.value().sizes(), model->storage_of(item.key()));
    });
  }

  Fixture fixture{GetParam()};
  const test::TempDir folder;
};

/// "rope_scaling/factor" -> "rope_scaling.factor".
std::string in_messages(std::string path) {
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}

TEST_P(ConfigValues, AreTakenOrRefusedByName) {
  std::vector<std::string> paths;
  collect(fixture.config, "", paths);
  ASSERT_EQ(config_error(fixture.config), "");
  for (const auto& path : paths) {
    const Pointer pointer("/" + path);
    auto without = fixture.config;
    without[pointer.parent_pointer()].erase(pointer.back());
    const std::string here = path + ":" + GetParam();
    const bool idle =
        std::regex_match(path, kIdle) || std::regex_match(here, kIdle) || std::regex_match(here, kUnasked);
    auto values = wrong_values(fixture.config[pointer]);
    values.push_back({"missing", {}});
    for (const auto& wrong : values) {
      auto config = without;
      if (wrong.name != "missing") config[pointer] = wrong.value;
      const auto error = config_error(config);
      SCOPED_TRACE(path + ": " + wrong.name + ": " + error.substr(0, 300));
      EXPECT_THAT(error, Not(HasSubstr("NOT io::Error")));
      EXPECT_LT(error.size(), 2000u);
      EXPECT_EQ(error.find('\n'), std::string::npos);
      EXPECT_TRUE(std::regex_search(error, std::regex("key '|tensor '|model_type ")) || error.empty());
      if (!wrong.type || idle) continue;
      EXPECT_THAT(error, AnyOf(HasSubstr("key '" + in_messages(path) + "': found "), HasSubstr("model_type ")));
      EXPECT_THAT(error, AnyOf(HasSubstr(", allowed: "), HasSubstr(", expected ")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConfigValues, ::testing::ValuesIn(testing::runnable_fixtures()), testing::test_name);
INSTANTIATE_TEST_SUITE_P(Answers, ConfigValues, ::testing::ValuesIn(testing::seq2seq_fixtures()), testing::test_name);

}  // namespace
}  // namespace fp8::models
