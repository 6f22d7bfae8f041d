// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/files/measurement_file.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::measure {
namespace {

using test::throws_with;

TEST(ObserverStates, MalformedFilesAreRefusedWithFileAndKey) {
  const test::TempDir dir;
  const auto path = dir / "p_hooks_kl.observers";
  const io::Json good =
      to_json({"kl", recipes::Format::E4M3, 448, {{"bins", 64}}, {{"m", {{"inputs", io::Json::array()}}}}});
  io::write_json(path, good);
  EXPECT_EQ(to_json(read_observer_states(path)), good);
  const auto refused = [&](const char* key, const io::Json& value, const std::string& words) {
    io::Json json = good;
    json[key] = value;
    io::write_json(path, json);
    EXPECT_TRUE(throws_with({path.string(), words}, [&] { read_observer_states(path); }));
  };
  refused("Observer", 3, "Observer");
  refused("Format", "E3M4", "Format");
  refused("Fp8Max", 0, "Fp8Max");
  refused("Fp8Max", 1e30, "Fp8Max");
  refused("Parameters", {{"bins", "x"}}, "Parameters.bins");
  refused("Parameters", 1, "Parameters");
  refused("Nodes", {{"m", 3}}, "Nodes.m");
  refused("Nodes", {{"m", {{"outputs", 3}}}}, "Nodes.m.outputs");
  refused("Nodes", io::Json::array(), "Nodes");
  io::write_json(path, io::Json::array());
  EXPECT_TRUE(throws_with({path.string()}, [&] { read_observer_states(path); }));
}

}  // namespace
}  // namespace fp8::measure
