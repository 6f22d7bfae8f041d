// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/rows.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/accumulate.h>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/operators.h"
#include "fp8/runtime/intercept/tag_operators.h"

namespace fp8::quant {
namespace {

std::int64_t row_count(const at::Tensor& t) {
  return t.dim() > 1 ? c10::multiply_integers(t.sizes().begin(), t.sizes().end() - 1) : t.numel();
}

/// The number of each weight's first row, and of all rows.
std::vector<std::int64_t> starts_of(at::TensorList weights) {
  std::vector<std::int64_t> starts{0};
  for (const at::Tensor& weight : weights) starts.push_back(starts.back() + row_count(weight));
  return starts;
}

/// The weight that a row is of.
std::size_t weight_at(const std::vector<std::int64_t>& starts, std::int64_t row) {
  return static_cast<std::size_t>(std::ranges::upper_bound(starts, row) - starts.begin()) - 1;
}

bool is_straight(const at::Tensor& numbers) {
  return numbers.dim() < 2 || numbers.numel() == 0 || numbers.stride(-1) == 0 ||
         numbers.eq(numbers.narrow(-1, 0, 1)).all().item<bool>();
}

/// The number in `numbers` of each row; throws where one row's values are of several.
at::Tensor number_of_each_row(const at::Tensor& numbers, const std::string& name) {
  TORCH_CHECK(numbers.is_cpu() && numbers.scalar_type() == at::kLong && numbers.dim() >= 2 && numbers.numel() > 0,
              "[fp8::gather_rows] numbers: ", name, ": expected Long on cpu, of two or more dimensions, found ",
              numbers.scalar_type(), " on ", numbers.device(), " of sizes ", numbers.sizes());
  TORCH_CHECK(is_straight(numbers), "[fp8::gather_rows] ", name,
              ": its rows are not rows of weights in memory, where scales would go");
  return numbers.narrow(-1, 0, 1).reshape(-1).contiguous();
}

/// Where the rows of a new weight lie.
struct RowPlaces {
  std::vector<at::Tensor> weights;  ///< the ones that have some of them
  at::Tensor index;                 ///< of each, in the rows of those weights one after the other
};

RowPlaces find_rows(at::TensorList weights, const at::Tensor& numbers, const std::string& name) {
  const at::Tensor wanted = number_of_each_row(numbers, name);
  const auto starts = starts_of(weights);
  RowPlaces rows;
  rows.index = at::empty_like(wanted);
  const auto* from = wanted.const_data_ptr<std::int64_t>();
  std::set<std::size_t> used;
  std::vector<std::size_t> weight_of(static_cast<std::size_t>(wanted.numel()));
  for (std::size_t i = 0; i < weight_of.size(); ++i) {
    TORCH_CHECK(from[i] >= 0 && from[i] < starts.back(), "[fp8::gather_rows] ", name, ": row ", i,
                " is not in fp8, expected all of it or nothing");
    weight_of[i] = weight_at(starts, from[i]);
    used.insert(weight_of[i]);
  }
  std::map<std::size_t, std::int64_t> new_start;
  std::int64_t count = 0;
  for (const std::size_t w : used) {
    new_start[w] = count;
    count += row_count(weights[w]);
    rows.weights.push_back(weights[w].detach());
  }
  auto* to = rows.index.mutable_data_ptr<std::int64_t>();
  for (std::size_t i = 0; i < weight_of.size(); ++i)
    to[i] = from[i] - starts[weight_of[i]] + new_start.at(weight_of[i]);
  return rows;
}

/// "'a', 'b'": the modules of converted ones.
std::string modules_of(const std::vector<at::Tensor>& weights) {
  std::string names;
  for (const at::Tensor& weight : weights)
    if (const auto tag = runtime::tag_in_memory(weight))
      names += (names.empty() ? "'" : ", '") + tag->module_names() + "'";
  return names;
}

/// The scheme that all of them have.
io::Json scheme_of_all(const std::vector<at::Tensor>& weights, const std::string& name) {
  std::set<std::string> schemes;
  for (const at::Tensor& weight : weights) {
    TORCH_CHECK(fp8_handler(weight) != nullptr, "[fp8::gather_rows] ", name, ": a part of it is in high precision, ",
                modules_of(weights), " in fp8: expected all of it or nothing");
    schemes.insert(scheme_of(weight));
  }
  std::string found;
  for (const auto& scheme : schemes) found += (found.empty() ? "" : "; ") + scheme;
  TORCH_CHECK(schemes.size() == 1, "[fp8::gather_rows] ", name, " is of ", modules_of(weights),
              ": expected one scheme, found ", schemes.size(), ": ", found);
  return io::Json::parse(*schemes.begin());
}

/// f32 on the host: for each row of the weight one value, or one for each column of blocks.
at::Tensor scales_of_rows(const at::Tensor& weight, const io::Json& scheme) {
  const at::Tensor scale = scale_inv_of(weight).cpu();
  const std::int64_t rows = row_count(weight);
  if (scheme["weights"] == "block")
    return scale.repeat_interleave(scheme["block"][0].get<std::int64_t>(), 0).narrow(0, 0, rows);
  return scale.reshape({-1, 1}).repeat_interleave(rows / scale.numel(), 0);
}

/// What tag() takes of scales_of_rows(); changes "weights" of the scheme where it can't hold them.
at::Tensor joined_scale(const at::Tensor& rows, io::Json& scheme, const std::string& where) {
  if (scheme["weights"] == "tensor") {
    if (rows.eq(rows[0]).all().item<bool>()) return rows[0].clone();
    scheme["weights"] = "channel";
  }
  if (scheme["weights"] == "channel") return rows.reshape(-1);
  const auto height = scheme["block"][0].get<std::int64_t>();
  const at::Tensor scale = rows.slice(0, 0, rows.size(0), height);
  const bool fits = scale.repeat_interleave(height, 0).narrow(0, 0, rows.size(0)).equal(rows);
  TORCH_CHECK(fits, "[fp8::gather_rows] ", where, ": block scales meet inside of a block: convert with channel scales");
  return scale.contiguous();
}

}  // namespace

std::vector<at::Tensor> number_rows(at::TensorList weights) {
  std::vector<at::Tensor> numbers;
  std::int64_t count = 0;
  for (const at::Tensor& weight : weights) {
    const std::int64_t rows = row_count(weight);
    std::vector<std::int64_t> lead = weight.sizes().vec();
    if (weight.dim() > 1) lead.back() = 1;
    numbers.push_back(at::arange(count, count + rows, at::kLong).view(lead).expand(weight.sizes()));
    count += rows;
  }
  return numbers;
}

std::tuple<std::vector<std::int64_t>, bool> weights_of_rows(at::TensorList weights, const at::Tensor& numbers) {
  const auto starts = starts_of(weights);
  const bool straight = is_straight(numbers);
  const at::Tensor all = (straight && numbers.dim() > 1 && numbers.numel() > 0 ? numbers.narrow(-1, 0, 1) : numbers)
                             .to(at::kLong)
                             .contiguous();
  std::set<std::int64_t> found;
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    const std::int64_t row = all.const_data_ptr<std::int64_t>()[i];
    if (row >= 0 && row < starts.back()) found.insert(static_cast<std::int64_t>(weight_at(starts, row)));
  }
  return {{found.begin(), found.end()}, straight};
}

at::Tensor gather_rows(at::TensorList weights, const at::Tensor& numbers, const std::string& name,
                       const std::optional<at::Tensor>& expected) {
  const RowPlaces rows = find_rows(weights, numbers, name);
  io::Json scheme = scheme_of_all(rows.weights, name);
  const std::string where = name + " is of " + modules_of(rows.weights);
  std::vector<at::Tensor> codes, scales;
  for (const at::Tensor& weight : rows.weights) {
    TORCH_CHECK(weight.is_hpu() && weight.is_contiguous() && weight.size(-1) == numbers.size(-1), "[fp8::gather_rows] ",
                where, ": expected rows of ", numbers.size(-1), " on hpu, found sizes ", weight.sizes(),
                " and strides ", weight.strides(), " on ", weight.device());
    codes.push_back(weight.view(at::kByte).reshape({-1, weight.size(-1)}));
    scales.push_back(scales_of_rows(weight, scheme));
  }
  const auto joined = [](const std::vector<at::Tensor>& parts) {
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  };
  const at::Tensor found = joined(codes).index_select(0, rows.index.to(at::kHPU));
  TORCH_CHECK(!expected.has_value() || found.cpu().equal(expected->reshape(found.sizes())), "[fp8::gather_rows] ",
              where, ", in other rows than those that have scales: convert without it (blocklist)");
  TORCH_CHECK(numbers.dim() == 2 || scheme["weights"] != "block", "[fp8::gather_rows] ", where,
              ": expected a matrix for block scales, found sizes ", numbers.sizes());
  const at::Tensor scale = joined_scale(joined(scales).index_select(0, rows.index), scheme, where);
  const at::Tensor weight = found.view(rows.weights[0].scalar_type()).reshape(numbers.sizes());
  tag_codes(weight, name, scale, scheme.dump());
  return weight;
}

at::Tensor join_rows(at::TensorList pieces, at::TensorList numbers, const at::Tensor& wanted, const std::string& name) {
  runtime::check_one_for_each("join_rows", "numbers", numbers.size(), "pieces", pieces.size());
  std::unordered_map<std::int64_t, std::int64_t> row_of;  // in the pieces, by number
  for (const at::Tensor& piece : numbers) {
    const at::Tensor each = number_of_each_row(piece, name);
    for (std::int64_t i = 0; i < each.numel(); ++i)
      row_of.emplace(each.const_data_ptr<std::int64_t>()[i], static_cast<std::int64_t>(row_of.size()));
  }
  at::Tensor rows = number_of_each_row(wanted, name).clone();
  for (std::int64_t i = 0; i < rows.numel(); ++i) {
    std::int64_t& row = rows.mutable_data_ptr<std::int64_t>()[i];
    const auto it = row_of.find(row);
    row = it == row_of.end() ? -1 : it->second;
  }
  std::vector<std::int64_t> lead = wanted.sizes().vec();
  lead.back() = 1;
  return gather_rows(pieces, rows.view(lead).expand(wanted.sizes()), name, std::nullopt);
}

}  // namespace fp8::quant
