// SPDX-License-Identifier: Apache-2.0
// `fp8 quantize --rounding gptq --data FILE`: the codes of every module against its inputs on FILE, one decoder layer
// in memory at a time, before the checkpoint is written.
//
//   .OUT.rounding/    a file per layer (quant/checkpoint/rounded.h); stays where a run was killed, and until the shares
//                     of several processes are joined
//   --resume          layers whose file stands there run once more for their outputs, and are not rounded again
//   --rank, --shares  each process takes the next layer that no other has (io/shares/leases.h): all run the layers,
//                     each rounds some, and each waits for the files of the others
#pragma once

#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/work/snapshots.h"

namespace fp8::commands {

struct RoundingOptions {
  DataOptions data;                             ///< seq_len 0: DataOptions::for_rounding()
  std::vector<quant::QuantizedSource> modules;  ///< that the checkpoint has in fp8
  configs::RoundingKeys how;
  std::filesystem::path folder;  ///< for the layers' files; is there
  /// Other processes do the same work in the same folder.
  std::optional<io::LeaseOptions> others = {};
  double wait = 0;       ///< seconds without news of them until that is an error; 0: no limit
  bool collect = false;  ///< nothing is rounded: all layers must have their files
  bool judged = false;   ///< as many samples again must stand behind those, for a budget
  /// True if the checkpoint of codes with this identity stands: nothing is rounded then. May be empty.
  std::function<bool(const io::Json& identity)> finished = {};
};

/// The folder of the layers' files, beside the output.
class RoundingFolder {
 public:
  /// alone: locked by this process, gone when it ends unless it is to be resumed. shared: other processes need it until
  /// the output stands. scratch: another name, gone when this object is.
  enum class Use { alone, shared, scratch };

  /// Throws io::Error for one that is in use.
  RoundingFolder(const std::filesystem::path& out, Use use, bool resume);
  ~RoundingFolder();
  RoundingFolder(const RoundingFolder&) = delete;
  RoundingFolder& operator=(const RoundingFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// The codes were used. stands: the output is there, no other process needs them.
  void finish(bool stands);

 private:
  Use use_;
  std::filesystem::path path_;
  std::optional<Snapshots> own_;
};

/// plan: whose weights' scales are the checkpoint's. Throws UsageError for a family
/// that does not run and a --dtype that rounds the weights, io::Error for a module that is in no decoder layer, and
/// what LayerRounding throws.
extern Late<std::shared_ptr<quant::RoundedCodes>(const std::filesystem::path& model, const quant::PlanOptions& plan,
                                                 const RoundingOptions& options, const Context& context)>
    round_weights;

}  // namespace fp8::commands
