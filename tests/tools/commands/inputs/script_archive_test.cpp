// SPDX-License-Identifier: Apache-2.0
// Calls that a TorchScript file may make, and those that are refused before any of it runs.
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/runtime/print_handler.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/custom/extension.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

using torch::jit::Module;

constexpr const char* kForward = "def forward(self, x: Tensor, k: int=3) -> Tensor:\n  return torch.mul(x, k)\n";

Module with_code(const std::string& code) {
  Module m("M");
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define(code);
  return m;
}

/// Files that a script could overwrite or make.
struct ScriptArchive : ::testing::Test {
  ScriptArchive() {
    std::ofstream(victim_) << "original original";
    with_code(kForward).save(plain_.string());
  }

  /// The archive of `kForward` with `from` in its code replaced; by torch.save's own writer, so that text may be what
  /// no compiler writes.
  std::filesystem::path with_text(const std::string& from, std::string to, const std::string& extra = "") {
    for (std::size_t at; (at = to.find("VICTIM")) != std::string::npos;) to.replace(at, 6, victim_.string());
    caffe2::serialize::PyTorchStreamReader reader(plain_.string());
    caffe2::serialize::PyTorchStreamWriter writer((folder_ / "edited.pt").string());
    for (const auto& name : reader.getAllRecords()) {
      if (name == "version" || name == ".data/serialization_id" || name.ends_with("debug_pkl")) continue;
      const auto [data, size] = reader.getRecord(name);
      std::string text(static_cast<const char*>(data.get()), size);
      if (name == "code/__torch__.py") {
        const auto at = text.find(from);
        EXPECT_NE(at, std::string::npos) << text;
        text.replace(at, from.size(), to);
        text += extra;
      }
      writer.writeRecord(name, text.data(), text.size(), text.size() > 200);
    }
    writer.writeEndOfFile();
    return folder_ / "edited.pt";
  }

  /// Code before the last line of forward.
  std::filesystem::path with_line(const std::string& line) { return with_text("return", line + "\n    return"); }

  /// What both readers say of the file, and that nothing of it ran.
  std::string said_of(const std::filesystem::path& file) {
    const std::string text = error_of([&] { read_script(file); });
    EXPECT_EQ(error_of([&] { read_script_modules(file); }), text);
    EXPECT_EQ(read_file(victim_), "original original");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "made"));
    return text;
  }
  void expect_refused(const std::filesystem::path& file, const std::vector<std::string>& words) {
    const std::string text = said_of(file);
    for (const auto& word : words) EXPECT_THAT(text, HasSubstr(word));
  }

  const test::TempDir folder_;
  const std::filesystem::path victim_ = folder_ / "victim", plain_ = folder_ / "plain.pt";
  const std::string overwrite_ = "torch.fill_(torch.from_file(\"VICTIM\", True, 4), 1.0)";
};

TEST_F(ScriptArchive, OperatorsOnFilesAreRefusedByTheFunctionThatCallsThem) {
  const auto refused = [&](std::string line) {
    if (const auto at = line.find("OVERWRITE"); at != std::string::npos) line.replace(at, 9, overwrite_);
    return said_of(with_line(line));
  };
  EXPECT_GOLDEN(refused(text));
  expect_refused(with_line("torch.save(x, \"" + (folder_ / "made").string() + "\")"), {"M.forward", "aten::save"});
  // in code that another one calls
  expect_refused(
      with_text("def forward", "def other(self: __torch__.M) -> Tensor:\n    return " + overwrite_ + "\n  def forward"),
      {"M.other", "aten::from_file"});
}

TEST_F(ScriptArchive, NothingIsComputedWhileTheCodeIsCompiled) {
  expect_refused(with_text("k: int=3", "k: int=3, t: Tensor=" + overwrite_), {"M.forward", "default value"});
  expect_refused(with_text("  training : bool", "  training : bool\n  c : Final[Tensor] = " + overwrite_),
                 {"edited.pt: M:", "default value or constant"});
  expect_refused(with_line("def g(a: Tensor=" + overwrite_ + ") -> Tensor:\n      return a"), {"M.forward.g"});
  expect_refused(with_text("k: int=3", "k: int=CONSTANTS.c0.size"), {"default value"});
  expect_refused(with_text("k: int=3", "k: int=CONSTANTS.c0[0]"), {"default value"});
  expect_refused(with_text("k: int=3", "k: int=3, d: Device=torch.device(a=torch.str(" + overwrite_ + "))"),
                 {"default value"});
}

TEST_F(ScriptArchive, OtherNamespacesAndClassesAreRefusedBeforeTheyAreCompiled) {
  for (const char* call :
       {"ops.c10d.barrier(x)", "ops.inductor._reinterpret_tensor(x, [4], [1], 0)", "ops.prim.PythonOp(x)",
        "ops.prim.BailOut(x)", "ops.fp8.save([x], [\"w\"], [\"Linear\"], \"VICTIM\")", "ops.fp8.measure_begin(x)",
        "ops.symm_mem.one_shot_all_reduce(x)", "ops.static_runtime.create_owned_ref(x)"}) {
    const std::string text = call;
    expect_refused(with_line("x = " + text), {"M.forward calls " + text.substr(0, text.find('('))});
  }
  expect_refused(with_line("o = ops.inductor\n    x = o._reinterpret_tensor(x, [4], [1], 0)"), {"calls ops.inductor"});
  const std::string classes = "__torch__.torch.classes";
  expect_refused(with_line("s = " + classes + ".dist_rpc.WorkerInfo(\"a\", 1)"), {classes + ".dist_rpc.WorkerInfo"});
  expect_refused(with_line("c = " + classes + "\n    s = c.dist_rpc.WorkerInfo(\"a\", 1)"), {"calls " + classes + ","});
  expect_refused(with_line("c = __torch__\n    s = c.torch.classes.dist_rpc.WorkerInfo(\"a\", 1)"), {"__torch__,"});
  expect_refused(with_text("  training : bool", "  training : bool\n  s : " + classes + ".c10d.ProcessGroup"),
                 {"c10d"});
}

TEST_F(ScriptArchive, WhatUnpacksToTooMuchIsRefused) {
  expect_refused(with_text("return", "return", std::string(65 << 20, '\n')), {"code/__torch__.py", "64 MiB"});
  // LibTorch's parser would run out of stack, whichever way code is deep.
  const auto many = [](const std::string& text, int times = 100'000) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  for (const std::string& deep : {many("torch.neg(") + "x" + many(")"), many("[") + many("]"), many("-") + "x",
                                  many("not ") + "x", "x" + many(".a"), "x" + many("[0]"), "x" + many("()"),
                                  "x" + many(" + x"), "x" + many(" if x else x"), many("(x, "), many("{x: ")})
    expect_refused(with_line("y = " + deep), {"more than 1000 levels"});
  std::string blocks;
  for (int i = 1; i < 1100; ++i) blocks += "if True:\n" + std::string(static_cast<std::size_t>(4 + i), ' ');
  expect_refused(with_line(blocks + "pass"), {"more than 1000 levels"});
  caffe2::serialize::PyTorchStreamReader reader(plain_.string());
  caffe2::serialize::PyTorchStreamWriter writer((folder_ / "bomb.pt").string());
  const std::string zeros(1 << 20, '\0');
  writer.writeRecord("constants.pkl", zeros.data(), zeros.size(), /*compress=*/true);
  writer.writeEndOfFile();
  expect_refused(folder_ / "bomb.pt", {"constants.pkl", "unpack to more than the file"});
}

/// The class of a module in C++, by its name.
struct LinearOnly final : torch::jit::Resolver {
  explicit LinearOnly(c10::TypePtr t) : type(std::move(t)) {}
  c10::TypePtr resolveType(const std::string& name, const torch::jit::SourceRange& /*at*/) override {
    return name == "__torch__.Linear" ? type : nullptr;
  }
  c10::TypePtr type;
};

std::vector<std::string> g_printed;

TEST_F(ScriptArchive, ModulesAreListedWithoutTheirOwnCode) {
  Module linear("Linear");
  linear.register_attribute("training", c10::BoolType::get(), false);
  linear.register_parameter("weight", torch::full({2, 3}, 2.0), false);
  linear.define("def forward(self, x: Tensor) -> Tensor:\n  return torch.matmul(x, self.weight.t())\n");
  Module m("Restores");
  m.register_attribute("training", c10::BoolType::get(), false);
  m.register_attribute("sum", c10::IntType::get(), 4);
  m.register_module("fc", linear);
  m.define(
      "def forward(self, x: Tensor) -> Tensor:\n  return self.fc.forward(x) + self.sum\n"
      "def __getstate__(self):\n  return (self.sum, self.fc)\n");
  m.define(
      "def __setstate__(self, state: Tuple[int, __torch__.Linear]) -> None:\n  print('restored')\n"
      "  self.sum = state[0] + 1\n  self.fc = state[1]\n  self.training = False\n",
      std::make_shared<LinearOnly>(m.attr("fc").type()));
  m.save((folder_ / "m.pt").string());
  const auto handler = torch::jit::getPrintHandler();
  torch::jit::setPrintHandler([](const std::string& text) { g_printed.push_back(text); });
  const auto listed = measure::weight_modules(read_script_modules(folder_ / "m.pt"));
  EXPECT_TRUE(g_printed.empty());
  Module loaded = read_script(folder_ / "m.pt");
  torch::jit::setPrintHandler(handler);
  EXPECT_EQ(g_printed.size(), 1u);
  EXPECT_EQ(loaded.attr("sum").toInt(), 5);
  EXPECT_TRUE(torch::equal(loaded.forward({torch::ones({1, 3})}).toTensor(), torch::full({1, 2}, 11.0)));
  const auto whole = measure::weight_modules(loaded);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].name, "fc");
  EXPECT_EQ(listed[0].type, "Linear");
  EXPECT_EQ(whole.size(), 1u);
}

/// Calls of models, in the words of a file.
TEST_F(ScriptArchive, OtherScriptsLoadAsInLibTorch) {
  const auto loaded = [&](const std::string& line) {
    const auto file = with_line(line);
    const at::Tensor x = torch::arange(8, at::kFloat).view({2, 4});
    const at::Tensor expected = torch::jit::load(file.string()).forward({x}).toTensor();
    return torch::equal(read_script(file).forward({x}).toTensor(), expected) ? "as in LibTorch" : "otherwise";
  };
  EXPECT_GOLDEN(loaded(text));
  for (const char* defaults :
       {"k: float=-1.5", "k: int=3, o: Optional[int]=None, l: List[int]=[1, 2], t: Tuple[int, bool]=(1, True)",
        "k: float=inf, d: Device=torch.device(\"cpu\"), s: str=\"a(b)\"",
        "k: int=3, l: List[float]=annotate(List[float], [])"}) {
    SCOPED_TRACE(defaults);
    const auto file = with_text("k: int=3", defaults);
    const auto schema = [](Module m) { return c10::toString(m.get_method("forward").function().getSchema()); };
    EXPECT_EQ(schema(read_script(file)), schema(torch::jit::load(file.string())));
  }
}

/// "aten::save" of every operator that LibTorch and our libraries have.
std::set<std::string> all_operators() {
  std::set<std::string> names;
  for (const auto& op : torch::jit::getAllOperators()) names.insert(op->schema().name());
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) names.insert(op.name);
  return names;
}

std::string space_of(const std::string& op) { return op.substr(0, op.find(':')); }

TEST(ScriptRules, EveryOperatorIsAllowedOrRefused) {
  std::set<std::string> open, ours, refused;
  std::size_t allowed = 0;
  for (const auto& op : all_operators()) {
    if (!may_call(c10::Symbol::fromQualString(op))) continue;
    open.insert(space_of(op));
    if (space_of(op) == "fp8") ours.insert(op);
    ++allowed;
  }
  EXPECT_GT(allowed, 2000u);
  EXPECT_THAT(open, ::testing::IsSubsetOf({"aten", "prim", "quantized", "_quantized", "quantization", "sparse",
                                           "profiler", "fp8", "hpu"}));
  // A namespace with an operator that may be called has these that may not: a new one needs a decision.
  for (const auto& op : all_operators()) {
    if (open.count(space_of(op)) != 0 && !may_call(c10::Symbol::fromQualString(op)) && space_of(op) != "prim" &&
        space_of(op) != "fp8")
      refused.insert(op);
  }
  EXPECT_THAT(refused, UnorderedElementsAre("aten::_print", "aten::from_file", "aten::save"));
  EXPECT_THAT(ours, UnorderedElementsAre(
                        "fp8::activated", "fp8::block_linear", "fp8::cast_groups", "fp8::decode_groups",
                        "fp8::dequantize", "fp8::dot_product_attention", "fp8::fused_attention",
                        "fp8::has_script_nodes", "fp8::linear", "fp8::normalized", "fp8::rotary_angles", "fp8::rotated",
                        "fp8::scale_inv", "fp8::script_attention", "fp8::script_bmm", "fp8::script_cache",
                        "fp8::script_matmul", "fp8::script_softmax", "fp8::values", "fp8::weight_only_linear"));
  for (const char* op : {"prim::rpc_async", "prim::rpc_sync", "prim::rpc_remote", "prim::PythonOp", "prim::BailOut",
                         "prim::TensorExprGroup", "prim::oneDNNFusionGroup", "prim::StaticSubgraph"})
    EXPECT_FALSE(may_call(c10::Symbol::fromQualString(op))) << op;
  for (const char* name : {"HPUGraph", "GraphCache"})
    EXPECT_FALSE(may_use(std::string("__torch__.torch.classes.fp8_graphs.") + name)) << name;
  for (const char* op : {"prim::Print", "prim::RaiseException", "prim::If", "prim::tolist", "prim::NumToTensor"})
    EXPECT_TRUE(may_call(c10::Symbol::fromQualString(op))) << op;
}

/// An argument of text could be the name of a file: those that are allowed are known by their names.
TEST(ScriptRules, TextArgumentsOfAllowedOperatorsAreNoNamesOfFiles) {
  std::set<std::string> names;
  for (const auto& op : torch::jit::getAllOperators()) {
    if (!may_call(c10::Symbol::fromQualString(op->schema().name()))) continue;
    for (const auto& argument : op->schema().arguments())
      if (argument.type()->str().find("str") != std::string::npos) names.insert(argument.name());
  }
  std::string all;
  for (const auto& name : names) all += name + " ";
  EXPECT_EQ(
      all,
      "UPLO a activation algorithm api_name approximate args assert_msg attn_mask_type b chars cls device_type dict "
      "driver "
      "dtype el equation fillchar idx ind indexing input inputs interpolation item key l message mode module msg name "
      "new norm old ord p pad_mode padding padding_side qkv_format reduce rounding_mode s self separator "
      "seq_padding_type "
      "side softmax_mode softmax_modem string substr t to_add type values ");
}

TEST(ScriptRules, OperatorsOfLoadedLibrariesMayBeCalled) {  // last: load_extension() loads for good
  torch::Library other(torch::Library::DEF, "other_ext", std::nullopt, __FILE__, __LINE__);
  other.def("f(Tensor x) -> Tensor");
  EXPECT_FALSE(may_call(c10::Symbol::fromQualString("other_ext::f")));
  runtime::load_extension(FP8_SAMPLE_EXTENSION);
  EXPECT_TRUE(may_call(c10::Symbol::fromQualString("sample_ext::twice")));
}

}  // namespace
}  // namespace fp8::commands
