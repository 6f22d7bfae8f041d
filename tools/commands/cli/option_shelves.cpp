// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/option_shelves.h"

#include <algorithm>

namespace fp8::commands {
namespace {

struct CommonOnes {
  std::string_view command, options;  ///< spaces between
};

// What is required need not stand here.
constexpr CommonOnes kCommonOnes[] = {
    {"measure", "--data --samples --seq-len --batch --exclude --config --resume --device"},
    {"quantize",
     "--measurements --dynamic --weights-only --scheme --format --include --exclude --kv-cache --config --overwrite "
     "--resume --check --dry-run"},
    {"convert", "--scheme --verify --overwrite --dry-run"},
    {"evaluate", "--data --reference --samples --seq-len --batch --kv-cache --device --dtype"},
    {"generate", "--prompt --prompt-file --prompts --tokens --temperature --kv-cache --device --dtype --seed"},
    {"embed", "--data --pooling --normalize --seq-len --batch --device --dtype"},
    {"train",
     "STAGE --init --model --data --out --steps --batch --seq-len --lr --warmup --precision --recipe --measurements "
     "--eval --eval-every --save-every --resume --overwrite --config --device --seed"},
    {"run", "--inputs --measurements --samples --batch --reference --device --dtype"},
    {"inspect", "--html --plot --all --data --measurements --reference --plan --tensors-only"},
    {"config", "--kind --model --set --out"},
    {"doctor", "--all --device"},
    {"measurements merge", ""},
    {"measurements unify", "--ranks --world-size --experts --no-scales"},
    {"measurements expand", "--world-size"},
    {"measurements postprocess", "--keep-orig"},
    {"measurements diff", "--tolerance --top"},
    {"measurements show", ""},
    {"completion", ""},
    {"man", "--out"},
};
constexpr std::string_view kEverywhere = "--json --quiet --help --help-all";
constexpr std::string_view kProcesses =
    "--rank --world-size --shares --lease-seconds --join --wait --pipeline --rank-timeout --strategy --bucket-cap-mb "
    "--find-unused-parameters --static-graph --gradient-as-bucket-view --comm-hook --fusion-buffer-dtype --reduce-amax";

/// A word of the list.
bool has(std::string_view list, std::string_view option) {
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(' ', begin), list.size());
    if (list.substr(begin, end - begin) == option) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Shelf shelf_of(std::string_view command, std::string_view option) {
  const auto* row = std::ranges::find(kCommonOnes, command, &CommonOnes::command);
  if (row == std::end(kCommonOnes) || has(kEverywhere, option) || has(row->options, option)) return Shelf::common;
  return has(kProcesses, option) ? Shelf::processes : Shelf::advanced;
}

}  // namespace fp8::commands
