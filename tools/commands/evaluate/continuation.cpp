// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/continuation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {
namespace {

/// Returns the default of `part`: the activations of 256 tokens are some 5 % of 0.1 billion weights, those of 512
/// tokens less than 5 % of 1 billion.
std::int64_t part_for(const models::CausalLM& model) {
  constexpr std::int64_t kSmall = std::int64_t{1} << 30;
  std::int64_t bytes = 0;
  for (const auto& parameter : model.parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  return bytes < kSmall ? 256 : 512;
}

/// One prompt on its way.
class Sequence {
 public:
  Sequence(Continuation& result, const text::Tokenizer& tokenizer, const models::ModelShape& shape,
           const ContinuationOptions& options, std::size_t number)
      : result_(result),
        shape_(shape),
        options_(options),
        before_(shape.task == models::Task::answer ? 1 : length(result.prompt)),
        stream_(tokenizer, shape.task == models::Task::answer ? std::vector<std::int64_t>() : result.prompt),
        generator_(options.seed + number),
        limit_(std::min(shape.context, before_ + options.tokens)) {}

  std::int64_t limit() const { return limit_; }  ///< tokens, those in front of the first one among them
  std::int64_t last() const { return result_.ids.back(); }

  /// Picks a token from logits [V]; returns whether another one is wanted.
  bool take(const LogitsRow& logits, TokenDraw& draw, const std::function<void(const std::string&)>& emit) {
    const auto next = pick(logits, draw);
    if (std::count(shape_.eos.begin(), shape_.eos.end(), next) > 0) return end("eos", emit);
    result_.ids.push_back(next);
    tell(stream_.append(next), emit);
    if (length(result_.ids) == options_.tokens) return end("tokens", emit);
    if (before_ + length(result_.ids) > limit_) return end("context", emit);
    return true;
  }

 private:
  std::int64_t pick(const LogitsRow& logits, TokenDraw& draw) {
    const auto largest = largest_of(logits);
    if (!largest) io::fail<io::Error>("{}: NaN or infinite logits", options_.model);
    if (result_.ids.empty() && shape_.forced_first) return *shape_.forced_first;
    return options_.temperature <= 0 ? largest->index : draw.draw(logits, largest->value, generator_);
  }
  static std::int64_t length(const std::vector<std::int64_t>& ids) { return static_cast<std::int64_t>(ids.size()); }
  void tell(const std::string& piece, const std::function<void(const std::string&)>& emit) {
    result_.text += piece;
    if (!piece.empty()) emit(piece);
  }
  bool end(const char* why, const std::function<void(const std::string&)>& emit) {
    result_.stopped = why;
    tell(stream_.finish(), emit);
    return false;
  }

  Continuation& result_;
  const models::ModelShape& shape_;
  const ContinuationOptions& options_;
  std::int64_t before_;  ///< tokens in front of the first one: the prompt's, or the one that answers begin with
  TextStream stream_;
  std::mt19937_64 generator_;
  std::int64_t limit_;
};

class Run {
 public:
  Run(models::CausalLM& model, const text::Tokenizer& tokenizer, const ContinuationOptions& options, std::size_t first,
      std::vector<Continuation>& all, const Emit& emit)
      : model_(model),
        options_(options),
        part_(options.part.value_or(part_for(model))),
        first_(static_cast<std::int64_t>(first)),
        emit_(emit),
        draw_(options.temperature) {
    for (auto& one : all)
      sequences_.push_back(
          std::make_unique<Sequence>(one, tokenizer, model.shape(), options, first + sequences_.size()));
  }

  ContinuationSeconds run(const std::vector<Continuation>& all) {
    const c10::InferenceMode inference;  // no versions, no views for gradients: a quarter of a token's allocations
    const Stopwatch watch;
    ContinuationSeconds seconds;
    for (std::size_t i = 0; i < all.size(); ++i) read_prompt(i, all[i].prompt);
    seconds.prompts = watch.seconds();
    if (auto joined = join()) {
      caches_.clear();
      go_on(*joined, active_);
    } else {
      for (std::size_t i = 0; i < active_.size(); ++i) go_on(*caches_[i], {active_[i]});
    }
    seconds.all = watch.seconds();
    return seconds;
  }

 private:
  /// Runs prompt `i` and keeps its cache and its number if the sequence continues.
  void read_prompt(std::size_t i, const std::vector<std::int64_t>& prompt) {
    options_.begin(first_ + static_cast<std::int64_t>(i), 1);
    auto cache = model_.make_cache(sequences_[i]->limit());
    const bool answers = model_.shape().task == models::Task::answer;
    auto ids = prompt;
    if (answers) ids.push_back(model_.shape().start.value());
    while (model_.reads_in_parts() && static_cast<std::int64_t>(ids.size()) > part_) {
      const auto end = ids.begin() + part_;
      run_model({ids.begin(), end}, 1, *cache, 0, models::CausalLM::Logits::none);
      ids.erase(ids.begin(), end);
    }
    forward(ids, 1, *cache, answers ? static_cast<std::int64_t>(prompt.size()) : 0);
    if (!take(i, 0)) return;
    caches_.push_back(std::move(cache));
    active_.push_back(i);
  }

  /// nullptr where they go on one after the other.
  std::unique_ptr<models::Cache> join() const {
    if (active_.size() < 2) return nullptr;
    std::vector<models::Cache*> parts;
    std::int64_t longest = 0, rest = 0;  // tokens so far, and still to come
    for (std::size_t i = 0; i < active_.size(); ++i) {
      parts.push_back(caches_[i].get());
      longest = std::max(longest, caches_[i]->length());
      rest = std::max(rest, sequences_[active_[i]]->limit() - caches_[i]->length());
    }
    return model_.join(parts, longest + rest);
  }

  /// `active` in the order of the cache's sequences.
  void go_on(models::Cache& cache, std::vector<std::size_t> active) {
    const auto count = static_cast<std::int64_t>(active.size());
    options_.begin(first_ + static_cast<std::int64_t>(count > 1 ? 0 : active[0]), count);
    while (!active.empty()) {
      std::vector<std::int64_t> ids, kept;
      for (const auto i : active) ids.push_back(sequences_[i]->last());
      forward(ids, active.size(), cache);
      std::vector<std::size_t> rest;
      for (std::size_t row = 0; row < active.size(); ++row) {
        if (!take(active[row], row)) continue;
        rest.push_back(active[row]);
        kept.push_back(static_cast<std::int64_t>(row));
      }
      if (rest.size() < active.size() && !rest.empty()) cache.keep(kept);
      active = std::move(rest);
    }
  }

  /// ids of `sequences`, one after the other -> logits. source: how many are the source's.
  at::Tensor run_model(std::vector<std::int64_t> ids, std::size_t sequences, models::Cache& cache, std::int64_t source,
                       models::CausalLM::Logits logits) {
    check_interrupted();
    const auto b = static_cast<std::int64_t>(sequences), l = static_cast<std::int64_t>(ids.size()) / b;
    const auto input = at::from_blob(ids.data(), {b, l}, at::kLong).to(options_.device);
    return model_.forward(input, &cache, logits, source);
  }

  /// The logits of the last ones are kept, where they are.
  void forward(std::vector<std::int64_t> ids, std::size_t sequences, models::Cache& cache, std::int64_t source = 0) {
    const auto out = run_model(std::move(ids), sequences, cache, source, models::CausalLM::Logits::last);
    logits_ = (runtime::is_high_precision(out.scalar_type()) ? out : out.to(at::kFloat)).contiguous();
    readable_ = runtime::cpu_alias(logits_);
  }

  /// Of prompt i, whose logits are in this row.
  bool take(std::size_t i, std::size_t row) {
    const auto n = readable_.size(-1);
    const auto* all = static_cast<const std::byte*>(readable_.const_data_ptr());
    const LogitsRow logits{all + row * static_cast<std::size_t>(n) * readable_.element_size(),
                           runtime::float_type_of(readable_.scalar_type()), n};
    return sequences_[i]->take(logits, draw_, [&](const std::string& piece) { emit_(i, piece); });
  }

  models::CausalLM& model_;
  const ContinuationOptions& options_;
  std::int64_t part_, first_;
  const Emit& emit_;
  TokenDraw draw_;
  at::Tensor logits_, readable_;  ///< [sequences, 1, V] of the last forward; the same memory on the CPU
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<std::size_t> active_;                     ///< those that go on after their prompt, and
  std::vector<std::unique_ptr<models::Cache>> caches_;  ///< their caches
};

}  // namespace

ContinuationSeconds continue_prompts(models::CausalLM& model, const text::Tokenizer& tokenizer,
                                     const ContinuationOptions& options, std::size_t first,
                                     std::vector<Continuation>& all, const Emit& emit) {
  return Run(model, tokenizer, options, first, all, emit).run(all);
}

namespace {

using kernels::FloatType;

/// Bits: signed, of the logits' width. infinity: the bits of +inf. Bits of floats >= 0 are ordered as the floats are;
/// those below 0 are with all but the sign turned over.
template <class Bits>
std::optional<LargestLogit> largest_bits(const LogitsRow& logits, Bits infinity) {
  constexpr auto kMagnitude = std::numeric_limits<Bits>::max();
  const auto* bits = static_cast<const Bits*>(logits.data);
  Bits most = std::numeric_limits<Bits>::min(), farthest = 0;
  for (std::int64_t i = 0; i < logits.n; ++i) {
    const auto sign = static_cast<Bits>(bits[i] >> std::numeric_limits<Bits>::digits);  // 0 or -1
    most = std::max(most, static_cast<Bits>(bits[i] ^ (sign & kMagnitude)));
    farthest = std::max(farthest, static_cast<Bits>(bits[i] & kMagnitude));
  }
  if (farthest >= infinity) return std::nullopt;
  const auto negative = static_cast<Bits>(most >> std::numeric_limits<Bits>::digits);
  const auto largest = static_cast<Bits>(most ^ (negative & kMagnitude));
  // -0 is as large as 0, but below it in bits.
  const auto is_largest = [&](Bits x) { return x == largest || (largest == 0 && (x & kMagnitude) == 0); };
  const auto index = std::find_if(bits, bits + logits.n, is_largest) - bits;
  return LargestLogit{index, kernels::load_element(logits.data, logits.type, index)};
}

constexpr std::size_t kWindow =
    8;  // ids before the new ones: enough for a character of four byte tokens and its neighbours
constexpr std::size_t kMaxPending = 16;  // invalid bytes never become whole

/// Length of the longest common prefix of whole characters: all of a, unless a ended inside a character that b
/// completes.
std::size_t common_prefix(const std::string& a, const std::string& b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  while (n > 0 && n < b.size() && (b[n] & 0xC0) == 0x80) --n;
  return n;
}

}  // namespace

std::optional<LargestLogit> largest_of(const LogitsRow& logits) {
  switch (logits.type) {
    case FloatType::BF16: return largest_bits<std::int16_t>(logits, 0x7F80);
    case FloatType::F16: return largest_bits<std::int16_t>(logits, 0x7C00);
    case FloatType::F32: return largest_bits<std::int32_t>(logits, 0x7F800000);
  }
  return std::nullopt;
}

std::int64_t TokenDraw::draw(const LogitsRow& logits, float largest, std::mt19937_64& generator) {
  if (!weights_.defined() || weights_.numel() != logits.n) weights_ = at::empty({logits.n}, at::kDouble);
  auto* w = weights_.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < logits.n; ++i)
    w[i] = (static_cast<double>(kernels::load_element(logits.data, logits.type, i)) - largest) / temperature_;
  at::exp_(weights_);
  double sum = 0;
  for (std::int64_t i = 0; i < logits.n; ++i) sum += w[i];
  double rest = static_cast<double>(generator() >> 11) * 0x1p-53 * sum;
  std::int64_t last = 0;  // the last possible token takes what rounding leaves
  for (std::int64_t i = 0; i < logits.n; ++i) {
    if (w[i] <= 0) continue;
    last = i;
    rest -= w[i];
    if (rest < 0) break;
  }
  return last;
}

TextStream::TextStream(const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt)
    : tokenizer_(tokenizer) {
  const auto skip = prompt.size() - std::min(prompt.size(), kWindow);
  ids_.assign(prompt.begin() + static_cast<std::ptrdiff_t>(skip), prompt.end());
  known_ = ids_.size();
}

std::string TextStream::append(std::int64_t id) {
  ids_.push_back(id);
  return take(ids_.size() - known_ > kMaxPending);
}

std::string TextStream::finish() { return take(true); }

std::string TextStream::take(bool final) {
  const auto known_end = ids_.begin() + static_cast<std::ptrdiff_t>(known_);
  const auto before = tokenizer_.decode({ids_.begin(), known_end});
  const auto after = tokenizer_.decode(ids_);
  if (!final && (after.size() <= before.size() || after.ends_with("\xEF\xBF\xBD"))) return {};
  auto piece = after.substr(common_prefix(before, after));
  if (ids_.size() > kWindow) ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(kWindow));
  known_ = ids_.size();
  return piece;
}

}  // namespace fp8::commands
