// SPDX-License-Identifier: Apache-2.0

#include "fp8/measure/calibration/session.h"
#include "fp8/measure/calibration/watchers.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {
namespace {

/// A calibration that operators began, and where its watchers sit: the model is its owner's.
struct Calibration {
  std::shared_ptr<CalibrationSession> session;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> weights;
  std::atomic<std::int64_t> samples = 0, last = 0;  ///< of measure_forward(): so far, and of the forward that runs
};

/// Not destroyed at the program's end: a session that still lives then is written by ExitDump.
runtime::ops::Handles<Calibration>& calibrations() {
  static auto& all = *new runtime::ops::Handles<Calibration>("session");
  return all;
}

ConfiguredCalibration options_of(const std::string& config) {
  if (config.empty()) return {};
  const auto parsed = config.front() == '{'
                          ? configs::parse_quant_config(io::parse_json(config, "config"), "config", parse_options())
                          : configs::read_quant_config(config, parse_options());
  configs::refuse_load(parsed);
  return calibration_options(parsed);
}

io::Json amaxes(const std::vector<Amax>& list) {
  io::Json json = io::Json::array();
  for (const Amax& amax : list) json.push_back(amax);
  return json;
}

}  // namespace

std::vector<WeightModule> model_of(const char* op, at::TensorList weights, const std::vector<std::string>& modules,
                                   const std::vector<std::string>& types, const std::optional<Biases>& biases) {
  runtime::check_one_for_each(op, "modules", modules.size(), "weights", weights.size());
  runtime::check_one_for_each(op, "types", types.size(), "weights", weights.size());
  const bool with_biases = biases.has_value() && !biases->empty();
  if (with_biases) runtime::check_one_for_each(op, "biases", biases->size(), "weights", weights.size());
  std::set<std::string> names;
  std::vector<WeightModule> model;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK(names.insert(modules[i]).second, "[fp8::", op, "] modules: found \"", modules[i],
                "\" twice, expected each name once");
    if (configs::find_module_type(types[i]) == nullptr) {
      std::vector<std::string> known;
      for (const auto& type : configs::module_types()) known.emplace_back(type.name);
      TORCH_CHECK(false, "[fp8::", op, "] types: found \"", types[i], "\" for ", modules[i],
                  ", the nearest that is known is ", configs::closest(types[i], known));
    }
    runtime::check_dense(op, "weights", modules[i], weights[i]);
    WeightModule m{modules[i], types[i], weights[i], std::nullopt};
    if (with_biases) m.bias = biases->get(i);
    model.push_back(std::move(m));
  }
  return model;
}

std::vector<OpNode> nodes_of(const char* op, const Nodes& nodes, const std::optional<std::vector<std::string>>& names) {
  const std::size_t count = nodes.has_value() ? nodes->size() : 0;
  runtime::check_one_for_each(op, "node_names", names.has_value() ? names->size() : 0, "nodes", count);
  std::set<std::string> once;
  std::vector<OpNode> model;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = names->at(i);
    TORCH_CHECK(once.insert(name).second, "[fp8::", op, "] node_names: found \"", name,
                "\" twice, expected each name once");
    const auto node = nodes->get(i);
    model.push_back({name, node->type(), node->slot()});
  }
  return model;
}

std::int64_t measure_begin(at::TensorList weights, const std::vector<std::string>& modules,
                           const std::vector<std::string>& types, const std::optional<Biases>& biases,
                           const std::string& prefix, const std::string& config, const Nodes& nodes,
                           const std::optional<std::vector<std::string>>& node_names) {
  const auto model = model_of("measure_begin", weights, modules, types, biases);
  ConfiguredCalibration calibration = options_of(config);
  if (config.empty()) {  // a config says itself whether ranks have files of their own
    const auto process = configs::environment().process();
    if (process.has_value() && process->world > 1) calibration.options.rank = process;
  }
  if (!prefix.empty()) calibration.options.prefix = prefix;
  if (!calibration.options.prefix.empty()) check_writable(calibration.options.prefix);
  auto begun = std::make_shared<Calibration>();
  begun->session = CalibrationSession::attach(model, nodes_of("measure_begin", nodes, node_names), calibration.options);
  for (const auto& m : model) begun->weights.emplace_back(m.weight.getIntrusivePtr());
  return calibrations().add(std::move(begun));
}

void measure_samples(std::int64_t session, std::int64_t first, std::int64_t count) {
  const auto calibration = calibrations().get("measure_samples", session);
  TORCH_CHECK(first >= 0 && first < std::int64_t{1} << 53, "[fp8::measure_samples] first: found ", first,
              ", allowed: 0 to 2^53");
  TORCH_CHECK(count >= 1 && count < std::int64_t{1} << 32, "[fp8::measure_samples] count: found ", count,
              ", allowed: 1 to 2^32");
  calibration->session->begin_samples(first, count);
}

void measure_forward(std::int64_t session, const std::optional<at::Tensor>& input) {
  const auto calibration = calibrations().get("measure_forward", session);
  const std::int64_t count = input.has_value() && input->dim() > 1 ? std::max<std::int64_t>(input->size(0), 1) : 1;
  TORCH_CHECK(count < std::int64_t{1} << 32, "[fp8::measure_forward] input: found ", count,
              " rows, allowed: below 2^32");
  const std::int64_t first = calibration->samples;
  calibration->session->begin_samples(first, count);  // may write files, and fail
  calibration->samples = first + count, calibration->last = count;
}

void measure_forward_done(std::int64_t session) {
  const auto calibration = calibrations().get("measure_forward_done", session);
  if (const std::int64_t count = calibration->last)
    calibration->session->begin_samples(calibration->samples - count, count);
}

std::string measure_result(std::int64_t session) {
  const auto calibration = calibrations().get("measure_result", session);
  const MeasurementFile file = calibration->session->result();
  io::Json modules = io::Json::object(), non_finite = io::Json::array();
  for (const Measurement& m : file.modules) {
    io::Json& json = modules[m.module] = {{"inputs", amaxes(m.inputs)}};
    if (m.outputs.has_value()) json["outputs"] = amaxes(*m.outputs);
    if (m.weight.has_value()) json["weight"] = *m.weight;
  }
  for (const NonFinite& f : calibration->session->non_finite())
    non_finite.push_back({f.module, f.tensor, f.sample, f.nan ? "nan" : "inf"});
  return io::Json{{"samples", file.num_samples.value_or(0)}, {"modules", modules}, {"non_finite", non_finite}}.dump();
}

std::vector<std::string> measure_end(std::int64_t session, bool write) {
  const auto calibration = calibrations().get("measure_end", session);
  std::vector<std::string> paths;
  if (write) {
    for (const auto& path : calibration->session->finalize()) paths.push_back(path.string());
  } else {
    calibration->session->discard();
  }
  if (!calibrations().take_out(session)) return paths;
  for (const auto& weak : calibration->weights) {
    if (auto impl = weak.lock())
      remove_retired(at::Tensor::wrap_tensor_impl(std::move(impl)));  // else the model is gone
  }
  return paths;
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  // TorchScript neither moves nor leaves out an operator whose effect no argument shows.
  const auto def = [&m](const char* schema, auto function) {
    m.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE), std::move(function));
  };
  def("measure_begin(Tensor[] weights, str[] modules, str[] types, Tensor?[]? biases=None, str prefix=\"\", str "
      "config=\"\", __torch__.torch.classes.fp8.Node[]? nodes=None, str[]? node_names=None) -> int",
      &measure_begin);
  def("measure_samples(int session, int first, int count) -> ()", &measure_samples);
  def("measure_forward(int session, Tensor? input=None) -> ()", &measure_forward);
  def("measure_forward_done(int session) -> ()", &measure_forward_done);
  def("measure_reduced(Tensor weight, Tensor y) -> ()", &observe_reduced);
  def("measure_result(int session) -> str", &measure_result);
  def("measure_end(int session, bool write=True) -> str[]", &measure_end);
}

}  // namespace fp8::measure
