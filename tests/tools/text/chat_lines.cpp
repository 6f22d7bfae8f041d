// SPDX-License-Identifier: Apache-2.0
// chat_lines IN.json OUT.json: renders [{"template", "variables"}, ...]; writes [{"text"} or {"error"}, ...].
#include <iostream>

#include "fp8/tools/text/jinja/machine.h"

int main(int argc, char** argv) {
  using namespace fp8;
  if (argc != 3) {
    std::cerr << "usage: chat_lines IN.json OUT.json\n";
    return 2;
  }
  try {
    io::Json out = io::Json::array();
    for (const auto& one : io::read_json(argv[1])) {
      try {
        const text::jinja::Template chat(one.at("template").get<std::string>(), "template");
        out.push_back({{"text", chat.render(one.at("variables"))}});
      } catch (const io::Error& error) {
        out.push_back({{"error", error.what()}});
      }
    }
    io::write_json(argv[2], out);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "chat_lines: " << error.what() << "\n";
    return 1;
  }
}
