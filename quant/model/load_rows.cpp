// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/load_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/operators.h"
#include "fp8/quant/model/rows.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/ops/common/file_dtype.h"

namespace fp8::quant {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string module_of(const std::string& weight) {
  return weight.ends_with(kWeight) ? weight.substr(0, weight.size() - kWeight.size()) : weight;
}

/// Codes of the checkpoint: a weight of the model, or rows of some.
struct Piece {
  at::Tensor codes, numbers;
  std::vector<std::int64_t> sources;
  bool whole = false;
};

class Loader {
 public:
  Loader(const RowsOfModel& model, const std::string& folder) : model_(model), folder_(folder) {
    runtime::check_one_for_each("load_by_rows", "names", model.names.size(), "state", model.state.size());
    runtime::check_one_for_each("load_by_rows", "given", model.given.size(), "state", model.state.size());
    runtime::check_one_for_each("load_by_rows", "keys", model.keys.size(), "numbers", model.numbers.size());
    for (std::size_t i = 0; i < model.state.size(); ++i) {
      upright_.push_back(turned(i, model.state[i].detach()));
      whole_[model.given[i].unsafeGetTensorImpl()] = static_cast<std::int64_t>(i);
    }
    for (std::size_t i = 0; i < model.keys.size(); ++i) places_[model.keys[i]] = i;
  }

  std::vector<std::string> load() {
    const io::Checkpoint checkpoint(folder_);
    std::vector<at::Tensor> codes;
    std::vector<std::string> modules;
    for (const std::string& name : checkpoint.names()) {
      const io::DType dtype = checkpoint.info(name).dtype;
      if (dtype != io::DType::F8_E4M3 && dtype != io::DType::F8_E5M2) continue;
      pieces_.push_back(piece_of(name));
      codes.push_back(pieces_.back().codes);
      modules.push_back(module_of(name));
    }
    if (codes.empty()) return {};
    const std::vector<std::string> types(codes.size(), "Linear");
    auto taken = load_tensors(codes, modules, types, folder_, std::nullopt, std::nullopt);
    join();
    return taken;
  }

 private:
  at::Tensor turned(std::size_t i, const at::Tensor& tensor) const {
    const bool transposed = std::ranges::find(model_.transposed, model_.names[i]) != model_.transposed.end();
    return transposed ? tensor.transpose(-2, -1) : tensor;
  }

  Piece piece_of(const std::string& name) const {
    const std::string where = "load: " + folder_ + ": tensor '" + name + "': ";
    const auto place = places_.find(name);
    TORCH_CHECK(place != places_.end(), where, "the model has none of this name");
    Piece piece;
    piece.numbers = model_.numbers[place->second];
    const auto same = whole_.find(piece.numbers.unsafeGetTensorImpl());
    piece.whole = same != whole_.end();
    bool straight = true;
    if (piece.whole)
      piece.sources = {same->second};
    else
      std::tie(piece.sources, straight) = weights_of_rows(upright_, piece.numbers);
    std::string names;
    for (const std::int64_t i : piece.sources) names += (names.empty() ? "" : ", ") + model_.names[i];
    TORCH_CHECK(straight && !piece.sources.empty(), where, "its rows are not rows of ", names,
                ", where scales would go");
    const at::Tensor& source = model_.state[piece.sources[0]];
    TORCH_CHECK_VALUE(source.is_hpu(), "load: ", name, ": expected it on hpu, found it on ", source.device());
    piece.codes = piece.whole ? source : at::empty(piece.numbers.sizes(), source.options());
    return piece;
  }

  /// The model's weights of their pieces.
  void join() {
    std::set<std::int64_t> cut;
    for (const Piece& piece : pieces_)
      if (!piece.whole) cut.insert(piece.sources.begin(), piece.sources.end());
    const auto rows = number_rows(upright_);
    for (const std::int64_t i : cut) {
      std::vector<at::Tensor> codes, numbers;
      for (const Piece& piece : pieces_) {
        if (piece.whole || std::ranges::find(piece.sources, i) == piece.sources.end()) continue;
        codes.push_back(piece.codes);
        numbers.push_back(piece.numbers);
      }
      const at::Tensor& weight = model_.state[i];
      weight.set_requires_grad(false);
      weight.set_data(turned(i, join_rows(codes, numbers, rows[i], module_of(model_.names[i]))));
    }
  }

  const RowsOfModel& model_;
  const std::string folder_;
  std::vector<at::Tensor> upright_;
  std::unordered_map<const void*, std::int64_t> whole_;  ///< by the numbers given
  std::map<std::string, std::size_t> places_;
  std::vector<Piece> pieces_;
};

at::Tensor read(const io::Checkpoint& checkpoint, const std::string& name) {
  const io::TensorInfo& info = checkpoint.info(name);
  const auto dtype = runtime::ops::tensor_dtype(info.dtype);
  TORCH_CHECK(dtype.has_value(), "load: ", checkpoint.folder().string(), ": tensor '", name, "': found dtype ",
              io::name_of(info.dtype), ", which tensors have not");
  at::Tensor values = at::empty(info.shape, *dtype);
  checkpoint.read(name, values.mutable_data_ptr());
  return values;
}

}  // namespace

std::vector<std::string> load_by_rows(const RowsOfModel& model, const std::string& folder) {
  return Loader(model, folder).load();
}

void load_others(at::TensorList state, const std::vector<std::string>& names, const std::string& folder,
                 const std::vector<std::string>& done) {
  runtime::check_one_for_each("load_others", "names", names.size(), "state", state.size());
  std::map<std::string, at::Tensor> by_name;
  std::map<const void*, std::string> missing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    by_name[names[i]] = state[i];
    if (fp8_handler(state[i]) == nullptr) missing[state[i].unsafeGetTensorImpl()] = names[i];
  }
  const std::set<std::string> taken(done.begin(), done.end());
  const io::Checkpoint checkpoint(folder);
  for (const std::string& name : checkpoint.names()) {
    if (taken.contains(name)) continue;
    const auto it = by_name.find(name);
    TORCH_CHECK(it != by_name.end(), "load: ", folder, ": tensor '", name, "': the model has none of this name");
    const at::Tensor values = read(checkpoint, name);
    TORCH_CHECK(values.sizes() == it->second.sizes(), "load: ", folder, ": tensor '", name, "': found sizes ",
                values.sizes(), ", the model's are ", it->second.sizes());
    it->second.detach().copy_(values);
    missing.erase(it->second.unsafeGetTensorImpl());
  }
  std::set<std::string> left;
  for (const auto& [tensor, name] : missing) left.insert(name);
  TORCH_CHECK(left.empty(), "load: ", folder, ": has no tensor '", left.empty() ? "" : *left.begin(), "'");
}

}  // namespace fp8::quant
