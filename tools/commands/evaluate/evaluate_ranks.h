// SPDX-License-Identifier: Apache-2.0
// The processes that score together, where a launcher started several: they meet, and find before the first forward
// that they score the same chunks by the same model in the same way.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/evaluate/evaluate_options.h"
#include "fp8/tools/commands/inputs/samples.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {

class EvaluateRanks {
 public:
  /// This process alone.
  EvaluateRanks() = default;
  /// Waits for the others, and compares program, options and the models' files with theirs, before anything is read.
  /// On ranks above 0 the context is quiet from now on. Throws c10::Error on every rank, "[evaluate] rank 1 differs
  /// from rank 0: model: config.json: ...".
  EvaluateRanks(const EvaluateOptions& options, Context& context);

  /// Null: alone.
  runtime::distributed::ProcessGroup* group() const { return group_.get(); }
  bool first() const { return group_ == nullptr || group_->rank() == 0; }
  /// Throws as the constructor unless all have the same chunks, and weights as they are now.
  void check_same(const Samples& samples, const models::LoadedModel& model, const models::LoadedModel* reference) const;
  /// Keys for --json: how many ranks there are, and the variables that said so. None: alone.
  io::Json summary() const;

 private:
  std::shared_ptr<runtime::distributed::ProcessGroup> group_;
  std::string said_by_;
};

}  // namespace fp8::commands
