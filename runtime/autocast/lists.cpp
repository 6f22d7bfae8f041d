// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/autocast/lists.h"

#include <unordered_set>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime::autocast {
namespace {

constexpr std::uint64_t kLongestFile = 1 << 20;
constexpr std::string_view kBlank = " \t\r\v\f";

constexpr std::string_view kLower = R"(
addmm addbmm batch_norm baddbmm bmm conv1d conv2d conv3d dot conv_transpose1d conv_transpose2d conv_transpose3d
dropout feature_dropout group_norm instance_norm layer_norm leaky_relu linear matmul mean mm mul mv softmax
log_softmax scaled_dot_product_attention)";

constexpr std::string_view kFp32 = R"(
acos addcdiv asin atan2 bilinear binary_cross_entropy binary_cross_entropy_with_logits cdist cosh
cosine_embedding_loss cosine_similarity cross_entropy_loss dist div divide embedding embedding_bag erfinv exp expm1
hinge_embedding_loss huber_loss kl_div l1_loss log log10 log1p log2 logsumexp margin_ranking_loss mse_loss
multi_margin_loss multilabel_margin_loss nll_loss pdist poisson_nll_loss pow reciprocal renorm rsqrt sinh
smooth_l1_loss soft_margin_loss softplus tan topk triplet_margin_loss truediv true_divide)";

constexpr std::string_view kPromote = R"(
add addcmul addcdiv cat div exp mul pow sub iadd truediv stack)";

std::string_view trimmed(std::string_view line) {
  line = line.substr(0, line.find('#'));
  const auto first = line.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kBlank) - first + 1);
}

struct Source {
  std::string variable, file;
};

Source first_set(const char* name, const char* other) {
  for (const char* variable : {name, other}) {
    if (const char* value = io::environment_value(variable); value != nullptr) return {variable, value};
  }
  return {};
}

/// Replaces `names` and `from` by the file's.
void read_list(const Source& source, std::vector<std::string>& names, std::string& from,
               std::vector<std::string>& warnings) {
  if (source.file.empty()) return;
  const std::string what = source.variable.empty() ? source.file : source.variable + " (" + source.file + ")";
  try {
    names = parse_op_names(io::read_file(source.file, kLongestFile));
    from = what;
  } catch (const std::exception& error) {
    warnings.push_back((source.variable.empty() ? "" : source.variable + ": ") + error.what() +
                       "; the default list of autocast ops stays in force");
  }
}

AutocastLists from_sources(const Source& lower, const Source& fp32, std::vector<std::string>& warnings) {
  AutocastLists lists = AutocastLists::defaults();
  read_list(lower, lists.lower, lists.lower_from, warnings);
  read_list(fp32, lists.fp32, lists.fp32_from, warnings);
  return lists;
}

}  // namespace

AutocastLists AutocastLists::defaults() {
  return {.lower = io::words(kLower), .fp32 = io::words(kFp32), .promote = io::words(kPromote)};
}

AutocastLists AutocastLists::load(const std::string& lower_file, const std::string& fp32_file,
                                  std::vector<std::string>& warnings) {
  return from_sources({"", lower_file}, {"", fp32_file}, warnings);
}

AutocastLists AutocastLists::from_environment(std::vector<std::string>& warnings) {
  return from_sources(first_set("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "LOWER_LIST"),
                      first_set("PT_HPU_AUTOCAST_FP32_OPS_LIST", "FP32_LIST"), warnings);
}

std::vector<std::string> parse_op_names(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) text.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> names;
  std::unordered_set<std::string_view> seen;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view name = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (!name.empty() && seen.insert(name).second) names.emplace_back(name);
  }
  return names;
}

std::string printable(std::string_view name) {
  std::string text(name.substr(0, 64));
  for (char& c : text) c = c >= ' ' && c <= '~' ? c : '?';
  return text;
}

bool is_python_name(std::string_view name) { return name == "iadd" || name == "truediv"; }

}  // namespace fp8::runtime::autocast
