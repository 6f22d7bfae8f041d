// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/model_stacks.h"

#include <set>
#include <tuple>

namespace fp8::quant {
namespace {

using Text = std::string_view;
constexpr int kDeepest = 4;  // parts of parts of a config

/// The first of the keys that counts something.
std::optional<std::int64_t> count_of(const io::Json& config, std::initializer_list<const char*> keys) {
  constexpr std::int64_t kMost = 1 << 20;
  for (const char* key : keys) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_number_integer()) continue;
    const auto count = found->get<std::int64_t>();
    if (count > 0 && count < kMost) return count;
  }
  return std::nullopt;
}
/// As the families spell it; some list the kinds of their layers instead.
std::optional<std::int64_t> layers_of(const io::Json& config) {
  if (const auto count = count_of(config, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"})) return count;
  const auto kinds = config.find("layers_block_type");
  if (kinds == config.end() || !kinds->is_array() || kinds->empty()) return std::nullopt;
  return static_cast<std::int64_t>(kinds->size());
}

bool is_part(const std::string& key, const io::Json& value) {
  return value.is_object() && (key.ends_with("_config") || key == "encoder" || key == "decoder");
}

/// Configs at one depth that count words and layers.
void collect_language(const io::Json& config, int depth, std::vector<const io::Json*>& found) {
  if (depth == 0) {
    if (count_of(config, {"vocab_size"}) && layers_of(config)) found.push_back(&config);
    return;
  }
  for (const auto& [key, value] : config.items())
    if (is_part(key, value)) collect_language(value, depth - 1, found);
}

/// A stack that the config counts.
struct Counted {
  std::int64_t count = 0;
  Text part = {};  ///< of the container's name: "encoder", "decoder"; empty: any
};

/// The stacks that the config counts: an encoder and a decoder, or one; empty if it does not say.
std::vector<Counted> counted_stacks(const io::Json& whole) {
  const io::Json& config = language_config(whole);
  const auto part = [&](const char* name, std::initializer_list<const char*> keys) {
    const auto found = whole.find(name);
    return found != whole.end() && found->is_object() ? layers_of(language_config(*found)) : count_of(config, keys);
  };
  auto encoder = part("encoder", {"encoder_layers", "num_encoder_layers", "encoder_num_hidden_layers"}),
       decoder = part("decoder", {"decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers"});
  const auto layers = layers_of(config);
  const auto is_both = [](const io::Json& c) { return c.value("is_encoder_decoder", io::Json()) == io::Json(true); };
  if (is_both(whole) || is_both(config) || (encoder && decoder)) {
    if (!encoder) encoder = layers;
    if (!decoder) decoder = layers;
    if (!encoder || !decoder) return {};
    return {{*encoder, "encoder"}, {*decoder, "decoder"}};
  }
  return layers ? std::vector<Counted>{{*layers}} : std::vector<Counted>{};
}

/// The numbered blocks of a file below one prefix.
struct Container {
  std::string before;
  std::set<std::int64_t> numbers;
};

/// How many of a container's parts lead away from a module: 1 from "model.embed_tokens" to "model.layers.".
std::ptrdiff_t steps_between(Text module, Text before) {
  const auto [ours, theirs] = std::mismatch(before.begin(), before.end(), module.begin(), module.end());
  const auto common = std::find(std::make_reverse_iterator(ours), before.rend(), '.').base();
  return std::count(common, before.end(), '.');
}

/// Containers with weights of products, and the modules whose rows are the config's words.
struct Found {
  std::vector<Container> containers;
  std::vector<std::string> words;
};

Found look_at(const io::Checkpoint& checkpoint, const io::Json& config, const ModelNames& names) {
  constexpr Text kWeight = ".weight";
  const auto vocab = count_of(language_config(config), {"vocab_size"});
  std::map<std::string, Container> by_prefix;
  Found found;
  for (const auto& tensor : checkpoint.names()) {
    const auto& info = checkpoint.info(tensor);
    if (info.shape.size() != 2) continue;  // blocks have products, whatever else they have; convolutions are no blocks
    const Text module = Text(tensor).substr(0, tensor.size() - (tensor.ends_with(kWeight) ? kWeight.size() : 0));
    const auto [before, number] = block_of_name(module);
    if (before.empty()) {
      if (vocab && info.shape[0] >= *vocab && is_embedding_name(module)) found.words.emplace_back(module);
      continue;
    }
    auto [at, fresh] = by_prefix.try_emplace(std::string(before));
    if (fresh) at->second.before = before;
    at->second.numbers.insert(number);
  }
  for (auto& [before, container] : by_prefix)
    if (names.tower_of(before + "0.x").empty()) found.containers.push_back(std::move(container));
  return found;
}

/// The container of a counted stack: as many blocks as the config counts, more where draft layers stand behind them. Of
/// several the one next to the words, then one without more, then that of the shortest name: "model.layers.", not
/// "model.mtp_layers.". Null without one.
const Container* container_of(const Counted& stack, const Found& found) {
  const Container* best = nullptr;
  std::tuple<std::ptrdiff_t, bool, std::ptrdiff_t> rank_of_best;
  for (const auto& c : found.containers) {
    const auto blocks = std::distance(c.numbers.begin(), c.numbers.lower_bound(stack.count));
    if (blocks != stack.count || (!stack.part.empty() && !has_part(c.before, stack.part))) continue;
    std::ptrdiff_t steps = found.words.empty() ? 0 : std::ranges::count(c.before, '.');
    for (const auto& words : found.words) steps = std::min(steps, steps_between(words, c.before));
    const std::tuple rank(steps, std::ssize(c.numbers) != stack.count, std::ssize(c.before));
    if (best != nullptr && rank >= rank_of_best) continue;
    best = &c;
    rank_of_best = rank;
  }
  return best;
}

/// Of the container with the most blocks.
std::string first_missing(const Found& found) {
  const auto most = std::ranges::max_element(
      found.containers, [](const auto& a, const auto& b) { return a.numbers.size() < b.numbers.size(); });
  if (most == found.containers.end()) return "layers.0";
  std::int64_t number = 0;
  for (auto at = most->numbers.begin(); at != most->numbers.end() && *at == number; ++at) ++number;
  return most->before + std::to_string(number);
}

}  // namespace

std::pair<Text, std::int64_t> block_of_name(Text name) {
  constexpr std::size_t kDigits = 9;
  for (std::size_t at = name.find('.'); at != Text::npos; at = name.find('.', at + 1)) {
    const std::size_t end = name.find('.', at + 1);
    if (end == Text::npos) break;
    const Text part = name.substr(at + 1, end - at - 1);
    if (part.empty() || part.size() > kDigits || part.find_first_not_of("0123456789") != Text::npos) continue;
    return {name.substr(0, at + 1), std::stoll(std::string(part))};
  }
  return {};
}

const io::Json& language_config(const io::Json& config) {
  if (!config.is_object()) return config;
  for (int depth = 0; depth < kDeepest; ++depth) {
    std::vector<const io::Json*> found;
    collect_language(config, depth, found);
    if (!found.empty()) return *found.front();
  }
  return config;
}

ModelStacks::ModelStacks(const io::Checkpoint& checkpoint, const io::Json& config, const ModelNames& names) {
  if (!config.is_object()) return;
  const auto counted = counted_stacks(config);
  if (counted.empty()) return;
  const Found found = look_at(checkpoint, config, names);
  for (const auto& stack : counted) {
    const Container* container = container_of(stack, found);
    if (container == nullptr) {
      missing_ = first_missing(found);
      stacks_.clear();
      return;
    }
    stacks_.push_back({container->before, stack.count});
  }
}

std::int64_t ModelStacks::block_of(Text module) const {
  const auto [before, number] = block_of_name(module);
  if (before.empty()) return -1;
  for (const auto& stack : stacks_)
    if (before == stack.before && number < stack.count) return number;
  return -1;
}

}  // namespace fp8::quant
