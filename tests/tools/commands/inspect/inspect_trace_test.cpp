// SPDX-License-Identifier: Apache-2.0
// Traces by hand: sums, the file's forms, what is no trace, and that memory does not grow with it.
#include "fp8/tools/commands/inspect/inspect_trace.h"

#include <fstream>

#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

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
    EXPECT_EQ(json["kind"], "trace");
    EXPECT_EQ(json["of"], "hpu_op");
    EXPECT_EQ(json["events"], 5);
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
  EXPECT_THAT(error_of([&] { inspect_trace(folder / "none.trace.json"); }), HasSubstr("can't be read"));
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
  std::ifstream file(folder / "page.html");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cb>"));
  EXPECT_THAT(page, Not(HasSubstr("@FP8_TRACE_DATA@")));
}

}  // namespace
}  // namespace fp8::commands
