// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/source_facts.h"

#include <fmt/format.h>

#include "fp8/runtime/data/data_loader.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/tools/commands/train/train_data.h"

namespace fp8::commands {
namespace {

io::Json batch_facts(trainer::BatchSource& source, std::int64_t number) {
  source.seek(0, number);
  const auto batch = source.next();
  if (!batch) return nullptr;
  io::Checksum sum;
  for (const auto& tensor : batch->tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor here = runtime::cpu_alias(tensor.detach()).contiguous();
    const std::string form = c10::str(here.scalar_type(), here.sizes());
    sum.update(form.data(), form.size());
    sum.update(here.const_data_ptr(), here.nbytes());
  }
  return {batch->samples, io::checksum_text(sum.value())};
}

}  // namespace

io::Json facts_of(trainer::BatchSource& source) {
  io::Json facts = {{"batches", source.batches()}};
  if (source.batches() == 0) return facts;
  // A loader of LibTorch's reads all of an epoch on the way to its last batch.
  if (dynamic_cast<const data::DataLoader*>(&source) != nullptr)
    facts["last batch"] = batch_facts(source, source.batches() - 1);
  if (const auto* text = dynamic_cast<const TextBatches*>(&source))
    facts["text"] = fmt::format("{:016x}", text->fingerprint());
  facts["first batch"] = batch_facts(source, 0);
  source.seek(0, 0);
  return facts;
}

}  // namespace fp8::commands
