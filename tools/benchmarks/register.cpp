// SPDX-License-Identifier: Apache-2.0
// fp8_bench_register FILE: registers with LibTorch what FILE lists, and ends without taking it back. A line each:
//
//   twice(Tensor x) -> Tensor      a new operator, in a namespace of this program's
//   HPU aten::add.Tensor           a kernel of a dispatch key, which does nothing; Meta fp8_bench::twice
//
// Its time, beside LibTorch's own load (an empty FILE), is a lower bound for any library with as many operators.
#include <torch/library.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <utility>

namespace {

void nothing(const c10::OperatorHandle&, torch::jit::Stack*) {}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc == 2 ? argv[1] : "");
  if (!file.is_open()) {
    std::fprintf(stderr, "fp8_bench_register: error: expected a file that can be read\n");
    return 1;
  }
  using torch::Library;
  auto& own = *new Library(Library::FRAGMENT, "fp8_bench", std::nullopt, __FILE__, __LINE__);
  std::map<std::pair<std::string, c10::DispatchKey>, Library*> libraries;
  for (std::string line; std::getline(file, line);) {
    const std::size_t space = line.find(' '), call = line.find('(');
    if (call < space) {
      own.def(line.c_str());
      continue;
    }
    const auto key = c10::parseDispatchKey(line.substr(0, space));
    const std::string name = line.substr(space + 1), domain = name.substr(0, name.find(':'));
    auto& library = libraries[{domain, key}];
    if (library == nullptr) library = new Library(Library::IMPL, domain, key, __FILE__, __LINE__);
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&nothing>());
  }
  _exit(0);
}
