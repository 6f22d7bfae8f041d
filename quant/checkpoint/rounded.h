// SPDX-License-Identifier: Apache-2.0
// Codes that a rounding chose before a checkpoint is written, in files of a folder. No torch here.
//
//   FOLDER/LAYER.safetensors    "MODULE.codes"      U8 [rows, cols], row-major, whatever form the checkpoint has
//                               "MODULE.scale_inv"  F32: one, one per row, or the grid of blocks
//                               metadata "rounding": {"identity": ..., "modules": [RoundedModule, ...]}
//
// Modules that stay rounded to nearest have an entry in the metadata alone. A file is there whole or not at all, so a
// run that was cut short goes on after the last of them.
#pragma once

#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

using recipes::RoundingRegistration;

/// In fp8.json.
inline constexpr char kRoundingKey[] = "rounding";

/// The outcome of one module. Errors and signal are squared sums of its output over the tokens that were held back.
struct RoundedModule {
  std::string module;
  double signal = 0, nearest = 0, rounded = 0;
  std::int64_t columns = 0, tokens = 0, held = 0;  ///< tokens that made the inputs' matrix; that judge
  double damping = 0;                              ///< of the mean of its diagonal
  std::string kept;                                ///< why it stays rounded to nearest; empty: it does not

  /// SQNR of the output, rounded to nearest and as written; infinity without an error.
  double nearest_db() const;
  double written_db() const;
  io::Json json() const;
};

/// What RoundedCodes::json() says in a line.
struct RoundingSummary {
  std::int64_t judged = 0, nearest = 0, tokens = 0;  ///< modules that were judged, that were kept; the most tokens
  double nearest_db = 0, written_db = 0;             ///< means over those judged

  /// Of anything else than such JSON: none.
  static std::optional<RoundingSummary> of(const io::Json& rounding);
  /// "25.9 -> 31.0 dB, 2 kept nearest, 8192 tokens".
  std::string text() const;
};

/// One layer's file in the making.
struct RoundedLayer {
  struct Weight {
    std::string module;
    std::int64_t rows = 0, cols = 0;
    std::vector<std::uint8_t> codes;
    std::vector<float> scale_inv;
  };
  std::vector<Weight> weights;
  std::vector<RoundedModule> modules;

  void write(const std::filesystem::path& folder, const std::string& layer, const io::Json& identity) const;
};

class RoundedCodes {
 public:
  /// identity: what a file must have been made of to be added.
  RoundedCodes(std::filesystem::path folder, io::Json identity)
      : folder_(std::move(folder)), identity_(std::move(identity)) {}

  /// True if the layer has a file of this identity. Throws io::Error for one that is damaged.
  bool has(const std::string& layer) const { return open(layer).file != nullptr; }
  /// Takes in a layer's file. Throws as has(), and where there is none.
  void add(const std::string& layer);

  /// Forgets these modules, which are not to be in fp8.
  void erase(const std::function<bool(const std::string& module)>& unwanted);

  const io::Json& identity() const { return identity_; }  ///< of all layers
  const std::vector<RoundedModule>& modules() const { return modules_; }
  /// {"method", "dampening_frac", "actorder", "modules": [...]}, as fp8.json and --json have it: by the names of
  /// `source`, of which two may be one module here; null: by those here.
  io::Json json(const io::Checkpoint* source = nullptr) const;
  /// True if the module has codes here, which read() gives row by row.
  bool contains(const std::string& module) const { return files_.contains(module); }
  std::int64_t rows(const std::string& module) const;
  /// Throws io::Error where rows [first, first + rows) were made for other scales or columns than the checkpoint's.
  void require_scales(const std::string& module, std::int64_t first, std::int64_t rows, std::int64_t cols,
                      const Scheme& scheme, const std::vector<float>& scale_inv) const;
  void read(const std::string& module, std::int64_t row, std::int64_t rows, std::int64_t cols,
            std::uint8_t* codes) const;

 private:
  struct Layer {
    std::shared_ptr<const io::SafetensorsFile> file;  ///< null: none of this identity
    std::vector<RoundedModule> modules;
  };
  Layer open(const std::string& layer) const;

  std::filesystem::path folder_;
  io::Json identity_;
  std::map<std::string, std::shared_ptr<const io::SafetensorsFile>> files_;
  std::vector<RoundedModule> modules_;
};

/// The place of a weight of the checkpoint among them: rows of a module, which of experts holds gate above up.
struct RoundedPlace {
  std::string module;  ///< empty: it has none
  std::int64_t first = 0;
};

}  // namespace fp8::quant
