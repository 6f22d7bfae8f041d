// SPDX-License-Identifier: Apache-2.0
// config.json of a language model as a typed value: what every family has, and what is left to each.
#pragma once
#include <c10/core/ScalarType.h>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/models/base/attention_kind.h"

namespace fp8::io {
class Checkpoint;
}

namespace fp8::models {

/// The subject of a model's logits.
enum class Task : std::uint8_t {
  causal,    ///< the next token, [B, L, V]
  masked,    ///< the token at each position, which sees all others, [B, L, V]
  classify,  ///< the whole text, [B, 1, classes]
  embed,     ///< nothing: the hidden states themselves, [B, L, H]
  answer,    ///< the next token of an answer to a source text, [B, T, V]
};

/// The properties that any language model has.
struct ModelShape {
  Task task = Task::causal;
  std::int64_t classes = 0;              ///< Task::classify
  std::int64_t vocab = 0;                ///< ids are in [0, vocab)
  std::int64_t hidden = 0;               ///< width of the hidden states between layers
  std::int64_t inner = 0;                ///< width inside of a layer, at its widest
  std::int64_t layers = 0;               ///< that hidden states pass one after the other
  std::int64_t heads = 0, kv_heads = 0;  ///< of attention, and of its keys and values; 0: it has none
  std::int64_t context = 0;              ///< the most positions
  double expert_share = 1;               ///< of a mixture's experts, those that a token is sent to
  /// Width of what a forward gives.
  std::int64_t outputs() const { return task == Task::classify ? classes : task == Task::embed ? hidden : vocab; }
  std::vector<std::int64_t> bos, eos;  ///< as config.json or generation_config.json give them; may be empty
  /// Task::answer: what stands in front of an answer (decoder_start_token_id), and its first token, where that is given
  /// (forced_bos_token_id).
  std::optional<std::int64_t> start, forced_first;
};

/// A family derives its own, with the keys that only it has. All that changes the numbers is read or refused by name: a
/// model that we can't compute exactly is an error, not an approximation.
struct ModelConfig {
  virtual ~ModelConfig() = default;

  ModelShape shape;
  AttentionKind attention = AttentionKind::fused;  ///< the caller's choice, not config.json's
  std::optional<c10::ScalarType> dtype;            ///< "torch_dtype" or "dtype"; empty: that of the weights

  /// Takes what only the checkpoint tells: what its names begin with.
  virtual void fit(const io::Checkpoint& checkpoint) {}
  /// Throws io::Error if the checkpoint lacks the last layer (or expert) that config.json promises: asked before so
  /// many modules are made.
  virtual void check(const io::Checkpoint& checkpoint) const = 0;
};

// Typed access to one JSON object with messages that name the file and the key.

class ConfigReader {
 public:
  /// name: the file; prefix: path of this object in it ("" or "rope_scaling."). Throws io::Error if json is not an
  /// object.
  ConfigReader(const io::Json& json, std::string name, std::string prefix = "");

  /// nullptr: absent or null.
  const io::Json* find(const std::string& key) const;
  /// There, and null.
  bool is_null(const std::string& key) const;
  /// An integer in [low, high]; without a fallback the key must be there.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {}) const;
  /// A finite number in [low, high].
  double number(const std::string& key, double low, double high, std::optional<double> fallback = {}) const;
  bool boolean(const std::string& key, bool fallback) const;
  /// One of the allowed words.
  std::string word(const std::string& key, std::initializer_list<const char*> allowed,
                   const char* fallback = nullptr) const;
  /// An integer >= 0 or a list of at most 256 of them; empty if absent.
  std::vector<std::int64_t> token_ids(const std::string& key) const;
  /// A list of integers in [0, count); empty: absent.
  std::optional<std::vector<std::size_t>> indices(const std::string& key, std::size_t count) const;
  ConfigReader object(const std::string& key) const;
  /// Reads `object`, which must outlive it, as if it stood at `key`.
  ConfigReader below(const std::string& key, const io::Json& object) const;
  const std::string& name() const { return name_; }  ///< of the file
  const io::Json& json() const { return json_; }
  /// "dtype" or "torch_dtype"; empty: neither is there.
  std::optional<c10::ScalarType> dtype() const;

  /// "[models] FILE: key 'KEY': found VALUE, allowed: ALLOWED", thrown as io::Error.
  [[noreturn]] void fail(const std::string& key, const std::string& allowed) const;
  [[noreturn]] void fail_with(const std::string& message) const;

 private:
  const io::Json& json_;
  std::string name_, prefix_;
};

}  // namespace fp8::models
