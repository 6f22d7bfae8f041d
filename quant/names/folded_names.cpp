// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/folded_names.h"

#include <charconv>

#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {
namespace {

using NumberList = std::vector<std::string>;         // of one module, one for each "*" of its folded name
using Product = std::vector<std::set<std::string>>;  // every combination of these is meant

/// Calls f(begin, end, is_number) for each part of a name.
template <class F>
void each_part(const std::string& name, const F& f) {
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    f(at, end, end > at && name.find_first_not_of("0123456789", at) >= end);
    at = end + 1;
  }
}

/// Calls f(folded text before it, number) for each number of a name.
template <class F>
void each_number(const std::string& name, const F& f) {
  std::string before;
  each_part(name, [&](std::size_t at, std::size_t end, bool number) {
    const std::string part = name.substr(at, end - at);
    if (number) f(before, part);
    before += (number ? "*" : part) + ".";
  });
}

/// The products that the lists of numbers are, together.
std::vector<Product> products_of(const std::vector<NumberList>& lists) {
  const std::size_t places = lists.front().size();
  Product all(places);
  for (const auto& numbers : lists)
    for (std::size_t i = 0; i < places; ++i) all[i].insert(numbers[i]);
  std::size_t combinations = 1;
  for (const auto& numbers : all) combinations *= numbers.size();
  if (combinations == lists.size()) return {std::move(all)};
  std::map<std::string, std::vector<NumberList>> behind;  // what stands behind each first number
  for (const auto& numbers : lists) behind[numbers[0]].emplace_back(numbers.begin() + 1, numbers.end());
  std::map<std::vector<NumberList>, std::set<std::string>> alike;
  for (auto& [first, rest] : behind) {
    std::ranges::sort(rest);
    alike[rest].insert(first);
  }
  std::vector<Product> products;
  for (const auto& [rest, firsts] : alike) {
    for (auto& product : products_of(rest)) {
      product.insert(product.begin(), firsts);
      products.push_back(std::move(product));
    }
  }
  return products;
}

/// "{0,3-5}"; one number as it is.
std::string list_of(const std::set<std::string>& numbers) {
  if (numbers.size() == 1) return *numbers.begin();
  std::vector<std::pair<std::uint64_t, std::string>> sorted;
  for (const auto& text : numbers) {
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    sorted.emplace_back(value, text);
  }
  std::ranges::sort(sorted);
  std::vector<std::string> parts;
  for (std::size_t first = 0, last = 0; first < sorted.size(); first = ++last) {
    while (last + 1 < sorted.size() && sorted[last + 1].first == sorted[last].first + 1) ++last;
    if (last > first + 1) {
      parts.push_back(sorted[first].second + "-" + sorted[last].second);
    } else {
      for (std::size_t i = first; i <= last; ++i) parts.push_back(sorted[i].second);
    }
  }
  return "{" + io::joined(parts, ",") + "}";
}

bool holds(const Product& product, const NumberList& numbers) {
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (!product[i].contains(numbers[i])) return false;
  return true;
}

NumberList numbers_of(const std::string& module) {
  NumberList numbers;
  each_number(module, [&](const std::string&, const std::string& number) { numbers.push_back(number); });
  return numbers;
}

}  // namespace

std::string folded_name(const std::string& module) {
  std::string folded;
  each_part(module, [&](std::size_t at, std::size_t end, bool number) {
    folded += (at == 0 ? "" : ".") + (number ? "*" : module.substr(at, end - at));
  });
  return folded;
}

NameFolder::NameFolder(const std::vector<std::string>& names) {
  for (const auto& name : names)
    each_number(name, [&](const std::string& before, const std::string& number) { numbers_[before].insert(number); });
}

/// module: one of those that the product stands for.
std::string NameFolder::name_of(const std::string& module, const std::vector<std::set<std::string>>& product) const {
  std::string name, before;
  std::size_t place = 0;
  each_part(module, [&](std::size_t at, std::size_t end, bool number) {
    std::string part = module.substr(at, end - at);
    const std::string folded = number ? "*" : part;
    if (number) {
      const auto& own = product[place++];
      const auto all = numbers_.find(before);
      part = own.size() > 1 && all != numbers_.end() && all->second == own ? "*" : list_of(own);
    }
    name += (at == 0 ? "" : ".") + part;
    before += folded + ".";
  });
  return name;
}

std::vector<FoldedModules> NameFolder::fold(const std::vector<std::string>& modules) const {
  struct Shape {
    std::vector<NumberList> lists;
    std::vector<Product> products;
    std::vector<std::size_t> lines;  // of each product, from 1 on; 0: none yet
  };
  std::map<std::string, Shape> shapes;  // by folded name
  for (const auto& module : modules) shapes[folded_name(module)].lists.push_back(numbers_of(module));
  for (auto& [name, shape] : shapes) {
    std::ranges::sort(shape.lists);
    shape.lists.erase(std::unique(shape.lists.begin(), shape.lists.end()), shape.lists.end());
    shape.products = products_of(shape.lists);
    shape.lines.resize(shape.products.size());
  }
  std::vector<FoldedModules> out;
  for (const auto& module : modules) {
    Shape& shape = shapes.at(folded_name(module));
    const NumberList numbers = numbers_of(module);
    const auto found = std::ranges::find_if(shape.products, [&](const Product& p) { return holds(p, numbers); });
    std::size_t& line = shape.lines[static_cast<std::size_t>(found - shape.products.begin())];
    if (line == 0) {
      out.push_back({name_of(module, *found), {}});
      line = out.size();
    }
    out[line - 1].modules.push_back(module);
  }
  return out;
}

}  // namespace fp8::quant
