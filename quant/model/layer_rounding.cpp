// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/layer_rounding.h"

#include <numeric>

#include "fp8/quant/model/convert.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace {

constexpr std::int64_t kRun = 32, kChunk = 8 * kRun, kSeen = kChunk - kRun;  // tokens
constexpr std::int64_t kHeldAtOnce = 8 * kRun;                               // that are held back
constexpr std::int64_t kRows = 512;                                          // of a weight at a time

/// Rows of a weight at a time: whole blocks where its scales have those.
std::int64_t rows_at_once(const Scheme& scheme) {
  return scheme.has_blocks() ? scheme.block.rows * std::max<std::int64_t>(1, kRows / scheme.block.rows) : kRows;
}

/// Tokens that are added to a matrix of `cols` columns at a time: its memory is read and written for each such piece.
std::int64_t seen_at_once(std::int64_t cols) { return kSeen * std::clamp<std::int64_t>(cols / 4 / kChunk, 1, 4); }

/// Columns by rising diagonal, so that the sweep, which begins at the end, takes the largest first; of equals the later
/// column. Else the first column comes last.
std::vector<std::int64_t> sweep_order(const std::vector<float>& gram, std::int64_t n, bool by_diagonal) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!by_diagonal) {
    std::ranges::reverse(order);
    return order;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return gram[a * n + a] < gram[b * n + b]; });
  return order;
}

/// Codes of some rows of a weight, and the squared errors of their outputs.
struct Rows {
  std::vector<std::uint8_t> codes;
  double error = 0;
};

/// One weight under fixed scales.
class WeightRounding {
 public:
  WeightRounding(const measure::WeightModule& m, const PlannedModule& p, const WeightScales& scales,
                 const recipes::RoundingMethod& method, const std::vector<std::int64_t>& order, const float* factor,
                 const float* held)
      : w_(runtime::cpu_alias(m.weight.detach()).contiguous()),
        type_(runtime::ops::float_type_of(w_.scalar_type())),
        cols_(w_.size(1)),
        p_(p),
        scales_(scales),
        method_(method),
        order_(order),
        factor_(factor),
        held_(held) {}

  void take(std::int64_t first, std::int64_t rows) {
    first_ = first, rows_ = rows;
    const at::Tensor values = w_.narrow(0, first, rows).to(at::kFloat);
    values_.assign(values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel());
  }
  double signal() const { return kernels::quadratic_form(values_.data(), rows_, held_, cols_); }

  Rows nearest() const {
    Rows out{std::vector<std::uint8_t>(values_.size())};
    cast_weight_rows(data(), type_, rows_, cols_, first_, scales_, p_.scheme, out.codes.data());
    out.error = error_of(out.codes);
    return out;
  }

  Rows compensated() const {
    std::vector<float> w(values_.size()), rounded(w.size()), error(w.size());
    for_rows([&](std::int64_t at) {
      for (std::int64_t k = 0; k < cols_; ++k) w[at + k] = values_[at + order_[k]];
    });
    const std::int64_t width = p_.scheme.has_blocks() ? p_.scheme.block.cols : std::max<std::int64_t>(cols_, 1);
    std::vector<std::int32_t> group(static_cast<std::size_t>(cols_));
    for (std::int64_t k = 0; k < cols_; ++k) group[k] = static_cast<std::int32_t>(order_[k] / width);
    std::vector<float> scale, scale_inv;
    for (std::int64_t g = 0; g * width < cols_; ++g) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        const std::size_t at = scale_at(first_ + r, g);
        scale.push_back(scales_.scale[at]);
        scale_inv.push_back(scales_.scale_inv[at]);
      }
    }
    kernels::CompensatedRounding args;
    args.rows = rows_, args.cols = cols_, args.w = w.data(), args.factor = factor_;
    args.format = p_.scheme.format, args.max = p_.scheme.fp8_max();
    args.scale = scale.data(), args.scale_inv = scale_inv.data(), args.group = group.data();
    args.rounded = rounded.data(), args.error = error.data();
    method_.round(args);
    for_rows([&](std::int64_t at) {
      for (std::int64_t k = 0; k < cols_; ++k) w[at + order_[k]] = rounded[at + k];
    });
    Rows out{std::vector<std::uint8_t>(w.size())};
    kernels::cast_to_fp8(kernels::dense_cast(w.data(), rows_, cols_, out.codes.data(), args.format, args.max));
    out.error = error_of(out.codes);
    return out;
  }

 private:
  /// f(offset of a row) on all threads.
  template <class F>
  void for_rows(const F& f) const {
    kernels::parallel_for(rows_, 16, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) f(row * cols_);
    });
  }
  const void* data() const {
    return static_cast<const char*>(w_.const_data_ptr()) + first_ * cols_ * kernels::size_of(type_);
  }
  std::size_t scale_at(std::int64_t row, std::int64_t block_col) const {
    if (scales_.scale.size() == 1) return 0;
    if (!p_.scheme.has_blocks()) return static_cast<std::size_t>(row);
    return static_cast<std::size_t>(p_.scheme.layout().in_grid(row, 0, cols_) + block_col);
  }
  double error_of(const std::vector<std::uint8_t>& codes) const {
    std::vector<float> error(values_.size());
    decode_weight_rows(codes.data(), rows_, cols_, first_, scales_.scale_inv.data(),
                       static_cast<std::int64_t>(scales_.scale_inv.size()), p_.scheme, error.data(),
                       recipes::FloatType::F32);
    for (std::size_t i = 0; i < error.size(); ++i) error[i] = values_[i] - error[i];
    return kernels::quadratic_form(error.data(), rows_, held_, cols_);
  }

  const at::Tensor w_;
  const recipes::FloatType type_;
  const std::int64_t cols_;
  const PlannedModule& p_;
  const WeightScales& scales_;
  const recipes::RoundingMethod& method_;
  const std::vector<std::int64_t>& order_;
  const float *factor_, *held_;
  std::int64_t first_ = 0, rows_ = 0;
  std::vector<float> values_;
};

}  // namespace

/// One tensor that modules take: its tokens, and what comes of them.
class LayerRounding::Input {
 public:
  Input(std::string module, std::int64_t cols)
      : module_(std::move(module)), cols_(cols), seen_(cols, seen_at_once(cols)), held_(cols, kHeldAtOnce) {}

  std::int64_t cols() const { return cols_; }
  std::int64_t tokens() const { return seen_.tokens; }
  std::int64_t held() const { return held_.tokens; }
  const std::vector<float>& held_gram() const { return held_.gram; }
  const std::vector<std::int64_t>& order() const { return order_; }
  const std::vector<float>& factor() const { return factor_; }
  double damping() const { return damping_; }
  const std::string& module() const { return module_; }  ///< that takes it first

  /// True if x is the tensor of the last add(): the same memory, unchanged since.
  bool is(const at::Tensor& x) const {
    return last_.defined() && x.is_alias_of(last_) && x.storage_offset() == last_.storage_offset() &&
           x.sizes() == last_.sizes() && x.strides() == last_.strides() && x._version() == version_;
  }

  std::int64_t calls() const { return calls_; }

  void add(const at::Tensor& x, const Samples& samples) {
    ++calls_;
    last_ = x, version_ = x._version();
    at::Tensor host = runtime::cpu_alias(x.detach());
    if (!runtime::ops::is_high_precision(host.scalar_type())) host = host.to(at::kFloat);
    host = host.contiguous();
    const std::int64_t rows = cols_ == 0 ? 0 : host.numel() / cols_;
    const auto type = runtime::ops::float_type_of(host.scalar_type());
    if (!std::isfinite(kernels::amax(host.const_data_ptr(), type, host.numel()))) refuse(host, rows, samples);
    const at::Tensor values = host.to(at::kFloat);
    for (std::int64_t row = 0, n = 0; row < rows; row += n, place_ = (place_ + n) % kChunk) {
      const bool held = place_ >= kSeen;
      n = (held ? held_ : seen_)
              .take(values.const_data_ptr<float>() + row * cols_,
                    std::min(rows - row, (held ? kChunk : kSeen) - place_));
    }
  }

  void release() {
    for (auto* matrix : {&seen_.gram, &held_.gram, &factor_}) *matrix = std::vector<float>();
  }

  /// False where no damping makes it positive definite: nothing was added, or zeros.
  bool finish(const configs::RoundingKeys& how) {
    last_.reset();
    for (Sum* sum : {&seen_, &held_}) {
      sum->flush();
      sum->rows = std::vector<float>();  // `= {}` would keep its memory
    }
    std::vector<float>& gram = seen_.gram;
    if (seen_.tokens == 0 || cols_ == 0) return false;
    double mean = 0;
    for (std::int64_t i = 0; i < cols_; ++i) mean += gram[i * cols_ + i];
    mean /= static_cast<double>(cols_);
    order_ = sweep_order(gram, cols_, how.by_diagonal);
    std::vector<double> damped(static_cast<std::size_t>(cols_ * cols_));
    for (damping_ = how.dampening_frac; damping_ <= std::max(1.0, how.dampening_frac); damping_ *= 10) {
      kernels::permute_gram(gram.data(), order_, damping_ * mean, damped.data());
      if (kernels::factor_gram(damped.data(), cols_, gram.data())) {  // in its place: these are the largest matrices
        factor_ = std::move(gram);
        return true;
      }
    }
    return false;
  }

 private:
  /// Sum over tokens of x x^T.
  struct Sum {
    Sum(std::int64_t columns, std::int64_t at_once)
        : cols(columns), capacity(at_once), rows(static_cast<std::size_t>(at_once * columns)) {}

    /// The first of n rows, as many as there is room for; their number.
    std::int64_t take(const float* x, std::int64_t n) {
      n = std::min(n, capacity - filled);
      std::copy_n(x, n * cols, rows.data() + filled * cols);
      filled += n;
      if (filled == capacity) flush();
      return n;
    }
    void flush() {
      if (gram.empty()) gram.assign(static_cast<std::size_t>(cols * cols), 0.0f);
      kernels::add_gram(rows.data(), filled, cols, gram.data());
      tokens += filled, filled = 0;
    }

    std::int64_t cols, capacity, filled = 0, tokens = 0;
    std::vector<float> rows, gram;
  };

  [[noreturn]] void refuse(const at::Tensor& host, std::int64_t rows, const Samples& samples) const {
    const auto finite = host.reshape({rows, cols_}).isfinite().all(1);
    std::int64_t row = 0;
    while (finite[row].item<bool>()) ++row;
    const bool whole = host.dim() == 3 && host.size(0) == samples.count;  // else rows of several samples, routed here
    const std::int64_t first = samples.first + (whole ? row / host.size(1) : 0),
                       last = whole ? first : samples.first + samples.count - 1;
    io::fail<io::Error>("{}: its input has a NaN or Inf in sample {}", module_,
                        first == last ? std::to_string(first) : io::message("{} to {}", first, last));
  }

  const std::string module_;
  const std::int64_t cols_;
  Sum seen_, held_;
  std::vector<float> factor_;
  std::vector<std::int64_t> order_;
  std::int64_t calls_ = 0, place_ = 0;  ///< place: of the next token in its chunk
  double damping_ = 0;
  at::Tensor last_;
  std::int64_t version_ = 0;
};

/// Lets the product run, and hands its input on.
class LayerRounding::Probe final : public runtime::OpHandler {
 public:
  Probe(LayerRounding& owner, std::string module, std::int64_t columns)
      : owner_(owner), module_(std::move(module)), columns_(columns) {}

  at::Tensor linear(const runtime::LinearCall& call) override {
    TORCH_CHECK(call.x.dim() > 0 && call.x.size(-1) == columns_, "[rounding] ", module_, ": expected an input of ",
                columns_, " columns, found ", call.x.sizes());
    ++calls_;
    input_ = owner_.input_of(*this, call.x);
    if (input_->module() == module_)
      input_->add(call.x, owner_.samples_);
    else
      same_ = same_ && input_->is(call.x);
    return call.original();
  }
  at::Tensor convolution(const runtime::ConvolutionCall& call) override { return call.original(); }
  at::Tensor dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) override {
    return weight;
  }
  bool owns_values() const override { return false; }
  std::string describe() const override { return "probed for rounding"; }

  const std::string& module() const { return module_; }
  std::int64_t columns() const { return columns_; }
  const std::shared_ptr<Input>& input() const { return input_; }
  std::int64_t calls() const { return calls_; }
  bool same() const { return same_; }  ///< it was always called on what its input took last

 private:
  LayerRounding& owner_;
  const std::string module_;
  const std::int64_t columns_;
  std::int64_t calls_ = 0;
  bool same_ = true;
  std::shared_ptr<Input> input_;
};

LayerRounding::LayerRounding(std::vector<measure::WeightModule> modules, Plan plan, const configs::RoundingKeys& how,
                             bool share)
    : plan_(std::move(plan)), how_(how), method_(recipes::rounding_method(how.method)), share_(share) {
  if (!method_->round) io::fail<std::invalid_argument>("rounding {}: needs no inputs of layers", how.method);
  for (const auto& p : plan_.modules) {
    const auto m = std::ranges::find(modules, p.info.name, &measure::WeightModule::name);
    TORCH_CHECK(m != modules.end() && (m->type == "Linear" || m->type == kExpertType) && m->weight.dim() == 2 &&
                    m->weight.is_hpu() && runtime::find_tag(m->weight) == nullptr,
                "[rounding] ", p.info.name,
                ": expected a Linear or an expert on hpu that is neither measured nor converted");
    modules_.push_back(*m);
  }
  for (const auto& m : modules_) {
    probes_.push_back(std::make_shared<Probe>(*this, m.name, m.weight.size(1)));
    runtime::tag_weight(m.weight, m.name, probes_.back());
  }
}

LayerRounding::~LayerRounding() { untag(); }

std::int64_t LayerRounding::input_bytes(std::int64_t columns) {
  return 4 * columns * (2 * columns + seen_at_once(columns) + kHeldAtOnce);
}

void LayerRounding::untag() {
  for (std::size_t i = 0; i < probes_.size(); ++i) runtime::untag_weight(modules_[i].weight);
}

void LayerRounding::begin_samples(std::int64_t first, std::int64_t count) { samples_ = {first, count}; }

/// The input that x is: the first call of a module decides whose it takes.
std::shared_ptr<LayerRounding::Input> LayerRounding::input_of(Probe& probe, const at::Tensor& x) {
  if (probe.input() == nullptr) {
    const auto same = std::ranges::find_if(inputs_, [&](const auto& input) { return share_ && input->is(x); });
    if (same != inputs_.end()) return *same;
    return inputs_.emplace_back(std::make_shared<Input>(probe.module(), probe.columns()));
  }
  return probe.input();
}

bool LayerRounding::shares_all() const {
  return std::ranges::all_of(
      probes_, [](const auto& p) { return p->input() == nullptr || (p->calls() == p->input()->calls() && p->same()); });
}

/// Module i, of whose input a factor is there.
void LayerRounding::round_module(std::size_t i, const Input& input, const WeightScales& scales, RoundedModule& outcome,
                                 RoundedLayer& out) const {
  const auto& m = modules_[i];
  WeightRounding rounding(m, plan_.modules[i], scales, *method_, input.order(), input.factor().data(),
                          input.held_gram().data());
  RoundedLayer::Weight weight{m.name, m.weight.size(0), m.weight.size(1), {}, scales.scale_inv};
  const std::int64_t step = rows_at_once(plan_.modules[i].scheme);
  for (std::int64_t row = 0; row < weight.rows; row += step) {
    rounding.take(row, std::min(step, weight.rows - row));
    const Rows chosen = rounding.compensated();
    weight.codes.insert(weight.codes.end(), chosen.codes.begin(), chosen.codes.end());
    outcome.signal += rounding.signal(), outcome.nearest += rounding.nearest().error, outcome.rounded += chosen.error;
  }
  if (!std::isfinite(outcome.signal + outcome.nearest + outcome.rounded)) {
    outcome.signal = outcome.nearest = outcome.rounded = 0;
    outcome.kept = "its outputs overflow f32";
    return;
  }
  if (outcome.rounded < outcome.nearest)
    out.weights.push_back(std::move(weight));
  else
    outcome.kept = "rounding to nearest is as good on the tokens held back";
}

RoundedLayer LayerRounding::finish() {
  untag();
  if (!shares_all()) {
    const auto other = std::ranges::find_if(probes_, [](const auto& p) {
      return p->input() != nullptr && (!p->same() || p->calls() != p->input()->calls());
    });
    io::fail<io::Error>("{}: took the same input as {} at first, and another one later", (*other)->module(),
                        (*other)->input()->module());
  }
  RoundedLayer out;
  const auto scales = planned_weight_scales(plan_, modules_);
  for (const auto& m : modules_) {
    RoundedModule& outcome = out.modules.emplace_back();
    outcome.module = m.name, outcome.columns = m.weight.size(1);
    outcome.kept = "no token of the calibration reaches it";
  }
  for (auto& input : inputs_) {
    const bool factored = input->finish(how_);
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      if (probes_[i]->input() != input) continue;
      RoundedModule& outcome = out.modules[i];
      outcome.tokens = input->tokens(), outcome.held = input->held(), outcome.damping = input->damping();
      outcome.kept = input->tokens() == 0 ? outcome.kept
                     : !factored          ? "its inputs are zero, or no damping gives them a factor"
                     : input->held() == 0 ? "of its few tokens none is left to judge by"
                                          : "";
      if (outcome.kept.empty()) round_module(i, *input, scales[i], outcome, out);
    }
    input->release();
  }
  return out;
}

}  // namespace fp8::quant
