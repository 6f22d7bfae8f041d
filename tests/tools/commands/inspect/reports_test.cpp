// SPDX-License-Identifier: Apache-2.0
#include <regex>

#include "fp8/tools/commands/inspect/cost_page.h"
#include "fp8/tools/commands/inspect/inspect_trace.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"
#include "support/values.h"

namespace fp8::commands {
namespace {

io::Json report(const std::string& name) {
  return {
      {"kind", "damage"},
      {"title", "model"},
      {"summary", ""},
      {"skipped", io::Json::array()},
      {"modules", {{{"name", name}, {"type", "Linear"}, {"sqnr_db", 30.0}, {"weight", nullptr}, {"input", nullptr}}}}};
}

/// The JSON inside of the page.
std::string data_of(const std::string& page) {
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const auto begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

TEST(ReportPage, CarriesTheReportAndAsksForNothingElse) {
  const auto page = report_page(report("model.layers.0.mlp.up_proj"));
  io::Json expected = report("model.layers.0.mlp.up_proj");
  expected["columns"] = {"mlp.up_proj"};
  EXPECT_EQ(io::parse_json(data_of(page), "page"), expected);
  EXPECT_THAT(page, AllOf(Not(HasSubstr("src=")), Not(HasSubstr("href=")), Not(HasSubstr("@FP8_REPORT_"))));
}

/// Elements that are opened are closed, in order; what a browser makes of it all is another test's.
TEST(ReportPage, IsWellFormed) {
  const auto page = report_page(report("a"), "<h2>Figure</h2><svg></svg>");
  EXPECT_EQ(page.rfind("<!doctype html>", 0), 0u);
  EXPECT_THAT(page, HasSubstr("<h2>Figure</h2><svg></svg>"));
  const std::set<std::string> empty = {"meta", "input"};
  std::vector<std::string> open;
  const auto script = page.find("<script>");
  const auto html = page.substr(0, script) + page.substr(page.find("</script>", script) + 9);
  const std::regex tag("<(/?)([a-z][a-z0-9]*)[^>]*>");
  for (std::sregex_iterator i(html.begin(), html.end(), tag), end; i != end; ++i) {
    if (empty.contains((*i)[2])) continue;
    if ((*i)[1].length() == 0) {
      open.push_back((*i)[2]);
      continue;
    }
    ASSERT_FALSE(open.empty()) << i->str();
    EXPECT_EQ(open.back(), (*i)[2]);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  for (const char* needed : {"prefers-color-scheme: dark", "@media print", "id=\"summary\"", "id=\"legend\"",
                             "name=\"viewport\"", "[30, 25, 20]"})
    EXPECT_THAT(page, HasSubstr(needed));
  EXPECT_THAT(page, Not(HasSubstr("http://www.w3.org/1999"))) << "nothing is fetched";
}

TEST(ReportPage, AMeasurementShowsWhatIsBad) {
  const auto inspected = io::Json::parse(R"({"kind": "measurement", "path": "f.json", "samples": 3, "modules": {
      "l.0.fc": {"inputs": [{"count": 1, "min": 2.5, "max": 2.5}, {"count": 2, "min": 1, "max": 4}], "outputs": null,
                 "params": {"weight": {"count": 1, "min": 0.5, "max": 0.5}}},
      "l.1.fc": {"inputs": [{"count": 1, "min": null, "max": null}], "outputs": [], "params": {}}},
      "problems": [{"place": "f.json: l.1.fc.inputs.0", "problem": "NaN or Inf in 1 of 1"}]})");
  const auto page = report_of("f.json", inspected);
  EXPECT_EQ(page["modules"][0]["input"], 4);
  EXPECT_EQ(page["modules"][0]["weight"], 0.5);
  EXPECT_EQ(page["modules"][0]["bad"], "");
  EXPECT_EQ(page["modules"][1]["input"], "bad");
  EXPECT_EQ(page["modules"][1]["bad"], "inputs.0: NaN or Inf in 1 of 1");
  EXPECT_EQ(page["summary"], "measurement of 2 modules, 3 samples; 1 modules have bad values");
}

TEST(ReportPage, NamesCannotEndTheScript) {
  const std::string name = "</script><script>alert(1)</script><!-- \xE2\x80\xA8 \"";
  const auto page = report_page(report(name));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_EQ(io::parse_json(data_of(page), "page")["modules"][0]["name"], name);
}

TEST(ReportPage, IsWrittenWhole) {
  const test::TempDir dir;
  write_report_page(dir / "r.html", report("a"));
  EXPECT_GT(std::filesystem::file_size(dir / "r.html"), 5000u);
  EXPECT_THROW(write_report_page(dir / "missing" / "r.html", report("a")), std::runtime_error);
}

quant::ModuleDamage module_of(const std::string& name, double db) {
  quant::ModuleDamage m;
  m.name = name;
  m.weight.count = 100;
  m.weight.signal = 1;
  m.weight.noise = std::pow(10.0, -db / 10);
  return m;
}

TEST(DamageSentence, SaysWhatToDo) {
  EXPECT_EQ(damage_sentence({module_of("a", 31.0), module_of("b", 32.5)}),
            "2 modules, all within 1.5 dB (31.0 to 32.5); nothing to exclude");
  EXPECT_EQ(damage_sentence({module_of("a", 18.0), module_of("b", 32.5)}),
            "2 modules from 18.0 to 32.5 dB; 1 below 25 dB, the worst is a: see --exclude");
  auto clipped = module_of("a", 31);
  clipped.weight.saturated = 3;
  EXPECT_EQ(
      damage_sentence({clipped, module_of("b", 32)}),
      "2 modules, all within 1.0 dB (31.0 to 32.0), saturation counted; in 1 of them values saturate, at most 3 % "
      "(a)")
      << "nothing to exclude is not said of what saturates";
  clipped.weight.signal = 0;
  EXPECT_EQ(damage_sentence({clipped}),
            "1 module; SQNR needs the original: --reference DIR; in 1 of them values saturate, at most 3 % (a)");
  clipped.weight.saturated = 0;
  EXPECT_EQ(damage_sentence({clipped}), "1 module; SQNR needs the original: --reference DIR; none saturates");
  auto same = module_of("a", 31);
  same.weight.noise = 0;
  EXPECT_EQ(damage_sentence({same}), "1 module, all the same as in the reference");
  EXPECT_EQ(damage_sentence({}), "no module is in fp8");
}

TEST(DamageTable, NamesSayWeightOrInput) {
  auto m = module_of("a", 31);
  EXPECT_THAT(damage_table({m, m}, 1, 0), HasSubstr("module  weight SQNR dB  weight saturated  weight underflow"));
  m.input = m.weight;
  EXPECT_THAT(damage_table({m}, 1, 0), HasSubstr("module  module SQNR dB  weight SQNR dB  input SQNR dB"));
}

/// A checkpoint as `evaluate --html` looks at it.
Cost cost(const std::string& name) {
  Cost c{.name = name, .form = "compressed-tensors"};
  c.bytes = 600, c.of_bytes = 1000;
  c.precisions = {{"E4M3 channel weights", 2, 500}, {"BF16", 1, 90}, {"norms, biases and other tensors", 0, 10}};
  c.damage.modules = {module_of("layers.0.mlp.down_proj", 18), module_of("layers.0.self_attn.q_proj", 31)};
  c.damage.modules[0].weight.saturated = 1;
  c.damage.skipped = {{"lm_head", "a head"}};
  c.numbers = io::Json::parse(R"({"model": "m", "perplexity": 2.5, "reference_perplexity": 2.4, "kl": 0.001,
      "perplexity_change": 0.04, "tokens": 512, "chunks": 2, "seq_len": 256, "data": ["text.txt"], "dtype": "bf16",
      "intervals": {"perplexity": [2.4, 2.6], "reference_perplexity": null, "perplexity_change": [-0.01, 0.09],
                    "kl": [0.0005, 0.0015], "level": 0.95}})");
  return c;
}

TEST(CostPage, OfOneModel) {
  const auto page = cost_page({"fp8 evaluate m --reference r", "r", {cost("m")}}, "2026-01-02");
  for (const char* said :
       {"+4.000 %", "95 %: -1.000 to +9.000 %", "60.0 %", "1.0 kB before, 600 B after", "of 3 with a matrix",
        "<td class=\"text\">2.4000 to 2.6000</td>", "2 of 256 tokens", "E4M3 channel weights",
        "The worst 2 of 2 modules",
        "weight SQNR 18.0 dB, below 25 dB; 1 % of the weights are beyond what the scale leaves room for",
        "nothing unusual", "fp8 evaluate m --reference r", "2026-01-02", "\"m against r\"", "a head"})
    EXPECT_THAT(page, HasSubstr(said));
  EXPECT_THAT(page, Not(HasSubstr("@FP8_REPORT_")));
}

TEST(CostPage, OfSeveralAndOfOneThatNobodyEvaluated) {
  const auto several = cost_page({"fp8 evaluate a b", "r", {cost("a"), cost("<b>")}}, "2026-01-02");
  for (const char* said :
       {"Quality and size", "r (reference)", "&lt;b&gt;", "a: modules by precision", "a, <b> against r"})
    EXPECT_THAT(several, HasSubstr(std::string(said) == "a, <b> against r" ? "a, \\u003cb>" : said));
  auto written = cost("m");
  written.numbers = nullptr;
  written.more = {{"KL divergence for --budget", "1e-3"}};
  const auto page = cost_page({"fp8 quantize r --out m", "r", {written}}, "2026-01-02");
  for (const char* said : {"not evaluated", "KL divergence for --budget", "made of"})
    EXPECT_THAT(page, HasSubstr(said));
}

/// Attention before the rest, in the order of a forward.
TEST(ReportPage, ColumnsAreInTheOrderOfTheModel) {
  io::Json all = {{"kind", "damage"}, {"title", "m"}, {"summary", ""}, {"modules", io::Json::array()}};
  for (const char* name :
       {"lm_head", "h.0.mlp.down_proj", "h.0.mlp.gate_proj", "h.0.mlp.up_proj", "h.0.self_attn.k_proj",
        "h.0.self_attn.o_proj", "h.0.self_attn.q_proj", "h.0.self_attn.v_proj"})
    all["modules"].push_back({{"name", name}, {"sqnr_db", 30.0}, {"weight", nullptr}});
  const io::Json order = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                          "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
  EXPECT_EQ(io::parse_json(data_of(report_page(all)), "page")["columns"], order);
  std::vector<std::string> rows;
  for (const auto& text : heat_map(all).texts)
    if (text.anchor == Anchor::end) rows.push_back(text.text);
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows.back(), "lm_head");
  rows.pop_back();
  EXPECT_EQ(io::Json(rows), order);
}

TEST(KeptTable, FoldsByNameAndReason) {
  const auto text =
      kept_table({{"layers.0.gate", "a router"}, {"layers.1.gate", "a router"}, {"lm_head", "a head"}}, {}, 0);
  EXPECT_EQ(text,
            "kept in high precision  modules  why\n"
            "layers.*.gate                 2  a router\n"
            "lm_head                       1  a head\n");
  EXPECT_EQ(kept_table({}, {}, 0), "");
  EXPECT_THAT(kept_table({{"layers.0.q", "excluded"}, {"layers.2.q", "excluded"}}, {module_of("layers.1.q", 30)}, 0),
              HasSubstr("layers.{0,2}.q                2  excluded\n"));
}

TEST(PlanTable, LinesHoldWhatHasOneFate) {
  quant::CheckpointReport report;
  report.quantized = {
      {"layers.0.q", "channel"}, {"layers.0.k", "tensor"}, {"layers.1.q", "channel"}, {"layers.1.k", "channel"}};
  report.skipped = {{"layers.2.q", "excluded"}, {"lm_head", "kept"}};
  const auto lines = plan_lines(report);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].name, "layers.{0,1}.q") << "not of layer 2";
  EXPECT_EQ(lines[0].modules, (std::vector<std::string>{"layers.0.q", "layers.1.q"}));
  EXPECT_EQ(lines[1].name, "layers.0.k") << "alone of its fate: by its own name";
  EXPECT_EQ(lines[2].name, "layers.1.k");
  EXPECT_EQ(lines[3].name, "layers.2.q");
  EXPECT_EQ(lines[3].scheme, "");
  EXPECT_EQ(lines[4].reason, "kept");
}

// Pictures as SVG.

TEST(LayerOf, IsTheNumberBehindLayers) {
  using Place = std::pair<std::int64_t, std::string>;
  EXPECT_EQ(layer_of("model.layers.12.self_attn.q_proj"), Place(12, "self_attn.q_proj"));
  EXPECT_EQ(layer_of("transformer.h.0.mlp.experts.3.w1"), Place(0, "mlp.experts.*.w1"));
  EXPECT_EQ(layer_of("layers.3"), Place(-1, "layers.3")) << "no module of a layer";
  for (const char* name : {"lm_head", "", "layers", "layers.x.q", "head.1.q", "layers..q"})
    EXPECT_EQ(layer_of(name), Place(-1, name));
}

TEST(Picture, AsSvg) {
  const Picture picture{20, 10, {{2, 1, 5, 3, {255, 0, 0}}}, {{0, 9, 20, 9}}, {{1, 8, "I<"}}};
  const auto svg = svg_of(picture);
  EXPECT_THAT(svg, HasSubstr("<rect x=\"2.0\" y=\"1.0\" width=\"5.0\" height=\"3.0\" fill=\"#ff0000\"/>"));
  EXPECT_THAT(svg, HasSubstr(">I&lt;</text>"));
}

io::Json report() {
  return io::Json::parse(R"({"kind": "damage", "title": "<m>", "summary": "s", "modules": [
    {"name": "layers.0.q", "sqnr_db": 31.5, "weight": {"amax": 2, "sqnr_db": 31.5, "largest": 2, "smallest": 0.01,
     "octaves": {"first_exponent": -3, "counts": [1, 0, 100]}}, "input": null},
    {"name": "layers.1.q", "sqnr_db": 19.5, "weight": null, "input": null},
    {"name": "lm_head", "sqnr_db": 27, "weight": null, "input": null}]})");
}

TEST(HeatMap, HasACellForEachLayer) {
  const auto picture = heat_map(report());
  EXPECT_EQ(picture.rectangles.size(), 3u + 4u);  // and a legend
  const auto svg = svg_of(picture);
  for (const char* text : {">31.5</text>", ">19.5</text>", ">below 20 dB</text>", "&lt;m&gt;"})
    EXPECT_THAT(svg, HasSubstr(text));
  for (const auto& t : picture.texts) EXPECT_LE(t.x, picture.width);
  auto none = report();
  none["modules"] = io::Json::array();
  EXPECT_THROW(heat_map(none), io::Error);
}

TEST(Histogram, OfOneModule) {
  const auto picture = histogram(report(), "layers.0.q");
  EXPECT_EQ(picture.rectangles.size(), 2u);  // empty octaves have no bar
  EXPECT_EQ(picture.lines.size(), 3u);       // the axis, smallest and largest
  EXPECT_THROW(histogram(report(), "gone"), io::Error);
  EXPECT_THROW(histogram(report(), "lm_head"), io::Error);
}

// Ticks against their definition, the picture's points against where they must lie, any text as text.

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(LossPlot, TicksAreRoundAndInside) {
  EXPECT_THAT(axis_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(axis_ticks(1.03, 1.24, 4), ::testing::Pointwise(::testing::DoubleNear(1e-12), {1.05, 1.1, 1.15, 1.2}));
  for (const double high : {1e-7, 0.3, 5.6, 732.0, 1e9}) {
    const auto ticks = axis_ticks(0, high, 6);
    EXPECT_GE(ticks.size(), 4u) << high;
    EXPECT_LE(ticks.size(), 13u) << high;
    EXPECT_LE(ticks.back(), high);
  }
  EXPECT_TRUE(axis_ticks(1, 1, 5).empty());
  EXPECT_TRUE(axis_ticks(0, std::numeric_limits<double>::infinity(), 5).empty());
}

TEST(LossPlot, PointsLieWhereTheyBelong) {
  const auto svg = loss_svg({{"run", {{0, 4.0}, {10, 2.0}}, {{10, 3.0}}}});
  EXPECT_EQ(count(svg, "points=\"62.0,18.0 880.0,374.0\""),
            2u);  // the plot spans 62..880 x 18..374; two points are too few to smooth
  EXPECT_THAT(svg, HasSubstr("<circle cx=\"880.0\" cy=\"196.0\""));
}

TEST(LossPlot, EmptyFlatAndBrokenCurves) {
  EXPECT_THAT(loss_svg({}), HasSubstr("</svg>"));
  EXPECT_THAT(loss_svg({{"none", {}, {}}}), HasSubstr("none"));
  const auto flat = loss_svg({{"flat", {{1, 2.0}, {2, 2.0}}, {}}, {"one", {{1, 2.0}}, {}}});
  EXPECT_THAT(flat, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
  const auto broken =
      loss_svg({{"gaps", {{1, 2.0}, {2, std::nan("")}, {3, 1.0}, {4, std::numeric_limits<double>::infinity()}}, {}}});
  EXPECT_THAT(broken, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf"))));
}

TEST(LossPlot, LongCurvesAreThinned) {
  LossCurve curve{"long"};
  for (int i = 0; i < 100000; ++i) curve.steps.emplace_back(i, 5.0 / (1 + i));
  EXPECT_LT(loss_svg({curve}).size(), 40000u);
}

TEST(LossPlot, TextStaysText) {
  const auto svg = loss_svg({{"<script>\"&'\n", {{1, 1.0}}, {{1, 1.0}}}});
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_EQ(count(svg, "&lt;script&gt;&quot;&amp;&#39; "), 2u);
}

// Traces by hand: sums, the file's forms, what is no trace, and that memory does not grow with it.

std::string event(const std::string& cat, const std::string& name, double ts, double dur, const std::string& args) {
  return R"({"ph": "X", "cat": ")" + cat + R"(", "name": ")" + name + R"(", "pid": 0, "tid": 0, "ts": )" +
         std::to_string(ts) + R"(, "dur": )" + std::to_string(dur) + R"(, "args": {)" + args + "}}";
}

std::string sample() {
  return event("user_annotation", "ProfilerStep#2", 0, 1000, "") + "," +
         event("cpu_op", "aten::mm", 10, 600, R"("Input Dims": [[2, 3], [3, 4]], "flops": 7)") + "," +
         event("hpu_op", "aten::mm", 20, 500,
               R"("module": "a.b", "phase": "forward", "flops": 2000000, "bytes": 500000)") +
         "," +
         event("hpu_op", "aten::mm", 600, 250,
               R"("x": {"module": "not this"}, "module": "a.c", "phase": "backward", "flops": 1000000)") +
         "," + event("hpu_op", "aten::add", 900, 50, R"("module": "", "phase": "optimizer")") +
         R"(, {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "hpu 0"}}, {"ph": "s", "cat": "ac2g"})";
}

std::filesystem::path write(const test::TempDir& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder / name) << text;
  return folder / name;
}

class InspectTrace : public test::InFolder {};

TEST_F(InspectTrace, SumsOfTheDevicesLane) {
  for (const auto& text : {std::string(R"({"schemaVersion": 1, "deviceProperties": [], "traceEvents": [)") + sample() +
                               R"(], "traceName": "x"})",
                           "[" + sample() + "]"}) {
    const auto found = inspect_trace(write(folder, "fit.1.pt.trace.json", text));
    const auto& json = found.json;
    expect_values(json, {{"kind", "trace"}, {"of", "hpu_op"}, {"events", 5}});
    EXPECT_DOUBLE_EQ(json["ms"].get<double>(), 0.8);
    EXPECT_EQ(json["steps"]["count"], 1);
    ASSERT_EQ(json["ops"].size(), 2U);
    EXPECT_EQ(json["ops"][0]["name"], "aten::mm");
    EXPECT_EQ(json["ops"][0]["count"], 2);
    EXPECT_DOUBLE_EQ(json["ops"][0]["share"].get<double>(), 750.0 / 800);
    EXPECT_DOUBLE_EQ(json["ops"][0]["gflops"].get<double>(), 3e6 / 750e-6 / 1e9);
    EXPECT_DOUBLE_EQ(json["ops"][0]["gbps"].get<double>(), 5e5 / 750e-6 / 1e9);
    ASSERT_EQ(json["modules"].size(), 3U);
    EXPECT_EQ(json["modules"][0]["name"], "a.b");
    EXPECT_EQ(json["modules"][1]["name"], "a.c");
    EXPECT_EQ(json["modules"][2]["name"], "(optimizer)");
    EXPECT_EQ(json["phases"].size(), 3U);
    EXPECT_THAT(found.text, HasSubstr("80.0 % of 1 steps'"));
  }
}

TEST_F(InspectTrace, WithoutADeviceTheHostsOps) {
  const auto found = inspect_trace(
      write(folder, "t.json", R"({"traceEvents": [)" + event("cpu_op", "aten::mm", 0, 5, R"("flops": 10)") + "]}"));
  EXPECT_EQ(found.json["of"], "cpu_op");
  EXPECT_EQ(found.json["ops"][0]["name"], "aten::mm");
}

TEST_F(InspectTrace, KnowsATraceByItsNameOrItsBeginning) {
  EXPECT_TRUE(is_trace(write(folder, "a.pt.trace.json", "")));
  EXPECT_TRUE(is_trace(write(folder, "b.json", R"({ "schemaVersion": 1)")));
  EXPECT_FALSE(is_trace(write(folder, "c.json", R"({"GlobalRank": null, "Nodes": {}})")));
  EXPECT_FALSE(is_trace(write(folder, "d.txt", R"({"traceEvents": []})")));
}

TEST_F(InspectTrace, DamagedFilesAreNamed) {
  const auto error_for = [&](const std::string& text) {
    return error_of([&] { inspect_trace(write(folder, "t.trace.json", text)); });
  };
  EXPECT_THAT(error_for(""), HasSubstr("t.trace.json"));
  EXPECT_THAT(error_for(R"({"traceEvents": [{"ph": "X")"), HasSubstr("t.trace.json: byte"));
  EXPECT_THAT(error_for(R"({"a": [1]})"), HasSubstr("found no key 'traceEvents'"));
  EXPECT_REFUSED(inspect_trace(folder / "none.trace.json"), "can't be read");
  EXPECT_EQ(error_for(R"({"traceEvents": [1, "x", null, [[{"ph": "X"}]], {"ph": 3, "dur": "x", "args": [{}]}]})"), "");
  EXPECT_EQ(error_for(std::string(100000, '[') + std::string(100000, ']')), "");
}

TEST_F(InspectTrace, NamesWithoutEndAreOneRow) {
  const auto path = folder / "many.trace.json";
  {
    std::ofstream file(path);
    file << "[";
    for (int i = 0; i < 70000; ++i) file << (i > 0 ? "," : "") << event("hpu_op", "op" + std::to_string(i), i, 1, "");
    file << "]";
  }
  const auto found = inspect_trace(path, true);
  EXPECT_EQ(found.json["events"], 70000);
  EXPECT_EQ(found.json["ops"].size(), 65537U);
  EXPECT_EQ(found.json["ops"][0]["name"], "(other)");
  EXPECT_EQ(found.json["timeline"].size(), 20000U);
}

TEST_F(InspectTrace, PageHoldsTheTimelineAsText) {
  const auto trace =
      write(folder, "t.trace.json", "[" + event("hpu_op", "</script><b>", 5, 2, R"("module": "m")") + "]");
  write_trace_page(folder / "page.html", trace, inspect_trace(trace, true));
  const std::string page = read_file(folder / "page.html");
  EXPECT_THAT(page, AllOf(HasSubstr("\\u003c/script>\\u003cb>"), Not(HasSubstr("@FP8_TRACE_DATA@"))));
}

}  // namespace
}  // namespace fp8::commands
