// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/rows_of_model.h"

#include <ATen/ops/empty.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/operators.h"
#include "fp8/quant/model/rows.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/runtime/ops/common/file_dtype.h"

namespace fp8::quant {
namespace {

constexpr std::string_view kDotWeight = ".weight";

std::string module_of_key(const std::string& weight) {
  return weight.ends_with(kDotWeight) ? weight.substr(0, weight.size() - kDotWeight.size()) : weight;
}

/// Where a tensor of the checkpoint lies in the model's state.
struct RowPlace {
  std::vector<std::int64_t> sources;  ///< what its rows are of
  bool whole = false;                 ///< the one source as it is
  bool straight = true;               ///< rows are rows
};

class StateRows {
 public:
  /// op: stands in messages.
  StateRows(const char* op, const RowsOfModel& model)
      : model_(model), transposed_(model.transposed.begin(), model.transposed.end()) {
    runtime::check_one_for_each(op, "names", model.names.size(), "state", model.state.size());
    runtime::check_one_for_each(op, "given", model.given.size(), "state", model.state.size());
    runtime::check_one_for_each(op, "keys", model.keys.size(), "numbers", model.numbers.size());
    for (std::size_t i = 0; i < model.state.size(); ++i) {
      upright_.push_back(turned(i, model.state[i].detach()));
      whole_[model.given[i].unsafeGetTensorImpl()] = static_cast<std::int64_t>(i);
    }
    for (std::size_t i = 0; i < model.keys.size(); ++i) keys_[model.keys[i]] = i;
  }

  std::optional<std::size_t> key_of(const std::string& name) const {
    const auto it = keys_.find(name);
    return it != keys_.end() ? std::optional(it->second) : std::nullopt;
  }

  const std::vector<at::Tensor>& upright() const { return upright_; }
  bool is_transposed(std::size_t i) const { return transposed_.contains(model_.names[i]); }
  bool is_coded(std::size_t i) const { return fp8_handler(model_.state[i]) != nullptr; }

  at::Tensor turned(std::size_t i, const at::Tensor& tensor) const {
    return is_transposed(i) ? tensor.transpose(-2, -1) : tensor;
  }

  RowPlace place_of(std::size_t key) const {
    const at::Tensor& numbers = model_.numbers[key];
    RowPlace place;
    const auto same = whole_.find(numbers.unsafeGetTensorImpl());
    if (same == whole_.end())
      std::tie(place.sources, place.straight) = weights_of_rows(upright_, numbers);
    else
      place = {{same->second}, true, true};
    return place;
  }

  std::string names_of(const RowPlace& place) const {
    std::vector<std::string> names;
    for (const std::int64_t i : place.sources) names.push_back(model_.names[i]);
    return io::joined(names);
  }

 private:
  const RowsOfModel& model_;
  const std::set<std::string> transposed_;
  std::vector<at::Tensor> upright_;
  std::unordered_map<const void*, std::int64_t> whole_;  ///< by the numbers given
  std::unordered_map<std::string, std::size_t> keys_;
};

/// Codes of the checkpoint: a weight of the model, or rows of some.
struct PieceOfModel {
  RowPlace place;
  at::Tensor codes, numbers;
};

PieceOfModel piece_of_model(const RowsOfModel& model, const StateRows& rows, const std::string& folder,
                            const std::string& name) {
  const std::string where = "load: " + folder + ": tensor '" + name + "': ";
  const auto key = rows.key_of(name);
  TORCH_CHECK(key.has_value(), where, "the model has none of this name");
  PieceOfModel piece{rows.place_of(*key), {}, model.numbers[*key]};
  TORCH_CHECK(piece.place.straight && !piece.place.sources.empty(), where, "its rows are not rows of ",
              rows.names_of(piece.place), ", where scales would go");
  const at::Tensor& source = model.state[piece.place.sources[0]];
  TORCH_CHECK_VALUE(source.is_hpu(), "load: ", name, ": expected it on hpu, found it on ", source.device());
  piece.codes = piece.place.whole ? source : at::empty(piece.numbers.sizes(), source.options());
  return piece;
}

/// The model's weights of their pieces.
void join_pieces(const RowsOfModel& model, const StateRows& rows, const std::vector<PieceOfModel>& pieces) {
  std::map<std::int64_t, std::vector<const PieceOfModel*>> pieces_of;
  for (const PieceOfModel& piece : pieces)
    for (const std::int64_t i : piece.place.sources)
      if (!piece.place.whole) pieces_of[i].push_back(&piece);
  const auto numbers_of_all = number_rows(rows.upright());
  for (const auto& [i, its] : pieces_of) {
    std::vector<at::Tensor> codes, numbers;
    for (const PieceOfModel* piece : its) {
      codes.push_back(piece->codes);
      numbers.push_back(piece->numbers);
    }
    const at::Tensor& weight = model.state[i];
    weight.set_requires_grad(false);
    weight.set_data(rows.turned(i, join_rows(codes, numbers, numbers_of_all[i], module_of_key(model.names[i]))));
  }
}

at::Tensor values_in_file(const io::Checkpoint& checkpoint, const std::string& name) {
  const io::TensorInfo& info = checkpoint.info(name);
  const auto dtype = runtime::ops::tensor_dtype(info.dtype);
  TORCH_CHECK(dtype.has_value(), "load: ", checkpoint.folder().string(), ": tensor '", name, "': found dtype ",
              io::name_of(info.dtype), ", which no tensor has");
  at::Tensor values = at::empty(info.shape, *dtype);
  checkpoint.read(name, values.mutable_data_ptr());
  return values;
}

}  // namespace

std::vector<std::string> cut_weights(const RowsOfModel& model) {
  const StateRows rows("cut_weights", model);
  std::set<std::string> cut;
  for (std::size_t key = 0; key < model.keys.size(); ++key) {
    const RowPlace place = rows.place_of(key);
    for (const std::int64_t i : place.sources)
      if (!place.whole && rows.is_coded(i)) cut.insert(model.names[i]);
  }
  return {cut.begin(), cut.end()};
}

std::tuple<std::vector<at::Tensor>, std::vector<std::string>> written_by_rows(const RowsOfModel& model,
                                                                              const std::vector<std::string>& types,
                                                                              at::TensorList values) {
  runtime::check_one_for_each("written_by_rows", "types", types.size(), "state", model.state.size());
  runtime::check_one_for_each("written_by_rows", "values", values.size(), "keys", model.keys.size());
  const StateRows rows("written_by_rows", model);
  std::tuple<std::vector<at::Tensor>, std::vector<std::string>> found;
  for (std::size_t key = 0; key < model.keys.size(); ++key) {
    const RowPlace place = rows.place_of(key);
    const auto typed = std::ranges::find_if(place.sources, [&](std::int64_t i) { return !types[i].empty(); });
    std::string type = typed == place.sources.end() ? "" : types[*typed];
    at::Tensor tensor = values[key];
    if (place.whole) {
      const std::int64_t i = place.sources[0];
      tensor = model.state[i];
      TORCH_CHECK(!rows.is_coded(i) || (!rows.is_transposed(i) && type != "MoeMatmul"), "save: ", model.names[i], ": ",
                  type == "MoeMatmul" ? "stacked experts are one tensor" : "its weight is [inputs, outputs]",
                  " in this model's checkpoints, which no reader takes in fp8: convert without it (blocklist)");
    } else if (std::ranges::any_of(place.sources, [&](std::int64_t i) { return rows.is_coded(i); })) {
      tensor = gather_rows(rows.upright(), model.numbers[key], model.keys[key], tensor);
    }
    if (type == "MoeMatmul" && tensor.dim() == 2) type = "Linear";
    std::get<0>(found).push_back(tensor);
    std::get<1>(found).push_back(type);
  }
  return found;
}

std::vector<std::string> load_by_rows(const RowsOfModel& model, const std::string& folder) {
  const io::Checkpoint checkpoint(folder);
  const StateRows rows("load_by_rows", model);
  std::vector<PieceOfModel> pieces;
  std::vector<at::Tensor> codes;
  std::vector<std::string> modules;
  for (const std::string& name : checkpoint.names()) {
    const io::DType dtype = checkpoint.info(name).dtype;
    if (dtype != io::DType::F8_E4M3 && dtype != io::DType::F8_E5M2) continue;
    pieces.push_back(piece_of_model(model, rows, folder, name));
    codes.push_back(pieces.back().codes);
    modules.push_back(module_of_key(name));
  }
  if (codes.empty()) return {};
  const std::vector<std::string> types(codes.size(), "Linear");
  auto done = load_tensors(codes, modules, types, folder, std::nullopt, std::nullopt);
  join_pieces(model, rows, pieces);
  return done;
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
    const at::Tensor values = values_in_file(checkpoint, name);
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
