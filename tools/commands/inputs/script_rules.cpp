// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <caffe2/serialize/file_adapter.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/lexer.h>
#include <torch/csrc/jit/frontend/parser.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/operator_upgraders/upgraders_entry.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/import_source.h>

#include <new>
#include <unordered_set>

#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/intercept/module_handler.h"
#include "fp8/tools/commands/inputs/script_input.h"

namespace fp8::commands {
namespace {

using torch::jit::Node;
using torch::jit::TreeRef;

constexpr std::string_view kNamespaces[] = {"aten",   "prim",     "quantized", "_quantized", "quantization",
                                            "sparse", "profiler", "fp8",       "hpu"};
constexpr std::string_view kClassNamespaces[] = {"quantized", "rnn", "sparse", "profiler", "fp8"};
// Output to stdout, where a result may go, and calls into other processes and Python, which some builds know; ours that
// give codes another scale or hand out a training's state.
constexpr std::string_view kRefused[] = {
    "aten::_print", "prim::rpc_async", "prim::rpc_remote", "prim::rpc_sync",       "prim::PythonOp",
    "fp8::packed",  "fp8::unpacked",   "fp8::with_scales", "fp8::written_by_rows", "fp8::training_state_bytes"};
constexpr std::string_view kClasses = "__torch__.torch.classes.";
constexpr int kLiterals[] = {torch::jit::TK_CONST, torch::jit::TK_STRINGLITERAL, torch::jit::TK_TRUE,
                             torch::jit::TK_FALSE, torch::jit::TK_NONE,          torch::jit::TK_VAR};
constexpr int kLists[] = {torch::jit::TK_OPTION, torch::jit::TK_LIST, torch::jit::TK_LIST_LITERAL,
                          torch::jit::TK_TUPLE_LITERAL, torch::jit::TK_DICT_LITERAL};
constexpr int kMaxLevels = 1000;  // of expressions and statements within each other

template <class Names, class Name>
bool holds(const Names& names, const Name& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

[[noreturn]] void fail_deep(const std::string& file) {
  io::fail<io::Error>("{}: found code of more than {} levels", file, kMaxLevels);
}

/// LibTorch's parser calls itself once more for each level, however many there are. Counted are the blocks and brackets
/// that are open, and, since the last comma, whatever may make an expression deeper: signs, calls, indices.
void require_shallow(const std::shared_ptr<torch::jit::Source>& source, const std::string& file) {
  int open = 0, deeper = 0;
  for (torch::jit::Lexer lexer(source); lexer.cur().kind != torch::jit::TK_EOF; lexer.next()) {
    const int kind = lexer.cur().kind;
    const bool opens = kind == '(' || kind == '[' || kind == '{' || kind == torch::jit::TK_INDENT;
    const bool closes = kind == ')' || kind == ']' || kind == '}' || kind == torch::jit::TK_DEDENT;
    open += opens ? 1 : closes ? -1 : 0;
    if (kind == ',' || kind == torch::jit::TK_NEWLINE)
      deeper = 0;
    else if (!closes && kind != torch::jit::TK_IDENT && kind != torch::jit::TK_NUMBER)
      ++deeper;
    if (open + deeper > kMaxLevels) fail_deep(file);
  }
}

/// True for the namespace of a loaded extension: the user trusts it.
bool of_extension(const std::string& space) {
  for (const auto& extension : runtime::extensions())
    for (const auto& op : extension.ops)
      if (op.starts_with(space + "::")) return true;
  return false;
}

/// A text argument that names a file or a group of processes, as the schemas of LibTorch, its domain libraries and our
/// own call it.
bool names_file_or_group(const c10::Argument& argument) {
  std::string name = argument.name();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  const bool outside = has("file") || has("path") || has("folder") || has("prefix") || has("url") || has("group");
  return outside && argument.type()->str().find("str") != std::string::npos;
}

/// Of a class in C++ that scripts have no business with.
bool is_foreign(const c10::Type& type) {
  if (const auto* object = type.castRaw<c10::ClassType>())
    return object->name().has_value() && !may_use(object->name()->qualifiedName());
  const auto inner = type.containedTypes();
  return std::any_of(inner.begin(), inner.end(), [](const auto& t) { return t != nullptr && is_foreign(*t); });
}

bool stays_inside(const c10::FunctionSchema& schema) {
  const auto fits = [](const c10::Argument& a) { return !names_file_or_group(a) && !is_foreign(*a.type()); };
  return std::all_of(schema.arguments().begin(), schema.arguments().end(), fits) &&
         std::all_of(schema.returns().begin(), schema.returns().end(), fits);
}

bool gives_tensors(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& a) {
    return a.type()->kind() == c10::TypeKind::TensorType;
  });
}

[[noreturn]] void fail(const std::string& file, const std::string& function, const std::string& what) {
  io::fail<io::Error>(
      "{}: {} calls {}, allowed in a TorchScript file: operators that reach no file, process, network or library", file,
      io::printable(function), io::printable(what));
}

/// Looks through the tree of one file of code.
class SourceCheck {
 public:
  explicit SourceCheck(const std::string& file) : file_(file) {}

  void visit(const TreeRef& tree, int level = 0) {
    if (level > 4 * kMaxLevels) fail_deep(file_);  // trees have more levels than text
    const bool named = tree->kind() == torch::jit::TK_DEF || tree->kind() == torch::jit::TK_CLASS_DEF;
    if (named) within_.push_back(name_of(tree->tree(0)));
    if (tree->kind() == torch::jit::TK_PARAM) require_constant(tree->tree(2));
    if (tree->kind() == torch::jit::TK_CLASS_DEF) check_class(tree);
    if (tree->kind() == '.' || tree->kind() == torch::jit::TK_VAR) {
      if (const auto path = path_of(tree); !path.empty()) {
        check_path(path);
        return;
      }
    }
    for (const auto& inner : tree->trees()) visit(inner, level + 1);
    if (named) within_.pop_back();
  }

 private:
  static const std::string& name_of(const TreeRef& ident) { return ident->tree(0)->stringValue(); }

  /// {"ops", "aten", "add"} of ops.aten.add; {} of what begins with another thing than a name.
  static std::vector<std::string> path_of(const TreeRef& tree) {
    if (tree->kind() == torch::jit::TK_VAR) return {name_of(tree->tree(0))};
    if (tree->kind() != '.') return {};
    auto path = path_of(tree->tree(0));
    if (!path.empty()) path.push_back(name_of(tree->tree(1)));
    return path;
  }

  std::string function() const { return fmt::format("{}", fmt::join(within_, ".")); }

  /// A namespace that is no longer written out where it is used could hide what is called.
  void check_path(const std::vector<std::string>& path) const {
    const std::string all = fmt::format("{}", fmt::join(path, "."));
    if (path[0] == "ops") {
      if (path.size() < 3 || !may_call(c10::Symbol::fromQualString(path[1] + "::" + path[2])))
        fail(file_, function(), all);
    } else if (path[0] == "__torch__") {
      const bool bare = path.size() == 1 || (path[1] == "torch" && path.size() == 2) || all + "." == kClasses;
      if (bare || !may_use(all)) fail(file_, function(), all);
    }
  }

  /// The constants of a class; `__annotations__["0"] = T` gives a type.
  void check_class(const TreeRef& tree) const {
    for (const auto& statement : tree->tree(2)->trees())
      if (statement->kind() == torch::jit::TK_ASSIGN && statement->tree(0)->tree(0)->kind() != torch::jit::TK_SUBSCRIPT)
        require_constant(statement->tree(1));
  }

  void require_constant(const TreeRef& value) const {
    if (!is_constant(value, 0))
      io::fail<io::Error>("{}: {}: found a default value or constant that is computed, allowed: one written out", file_,
                          io::printable(function()));
  }

  /// As LibTorch writes values: numbers, text, lists of them, CONSTANTS.c0, torch.device("cpu"), annotate(TYPE, VALUE).
  static bool is_constant(const TreeRef& value, int level) {
    if (level > 4 * kMaxLevels) return false;
    const auto all = [&](const TreeRef& list) {
      return std::all_of(list->trees().begin(), list->trees().end(),
                         [&](const TreeRef& t) { return is_constant(t, level + 1); });
    };
    if (holds(kLiterals, value->kind())) return true;
    if (holds(kLists, value->kind())) return all(value);
    switch (value->kind()) {
      // Anything more of an object in CONSTANTS may be its own code: a property, an operator, an index.
      case torch::jit::TK_UNARY_MINUS: return holds(kLiterals, value->tree(0)->kind());
      case '.': {
        const auto path = path_of(value);
        return !path.empty() && (path[0] != "CONSTANTS" || path.size() == 2);
      }
      case torch::jit::TK_APPLY: {
        const auto callee = path_of(value->tree(0));
        const auto& inputs = value->tree(1)->trees();
        if (!value->tree(2)->trees().empty()) return false;  // arguments by name
        if (callee == std::vector<std::string>{"torch", "device"}) return all(value->tree(1));
        return callee == std::vector<std::string>{"annotate"} && inputs.size() == 2 &&
               is_constant(inputs[1], level + 1);
      }
      default: return false;
    }
  }

  const std::string& file_;
  std::vector<std::string> within_;  // class and functions
};

void check_block(const torch::jit::Block& block, const std::string& file, const std::string& function,
                 std::unordered_set<c10::Symbol>& fine) {
  for (const Node* node : block.nodes()) {
    if (fine.count(node->kind()) == 0) {
      if (!may_call(node->kind())) fail(file, function, node->kind().toQualString());
      fine.insert(node->kind());
    }
    for (const auto* output : node->outputs())
      if (is_foreign(*output->type())) fail(file, function, output->type()->repr_str());
    for (const auto* inner : node->blocks()) check_block(*inner, file, function, fine);
    for (const auto name : node->attributeNames()) {
      if (node->kindOf(name) == torch::jit::AttributeKind::g)
        check_block(*node->g(name)->block(), file, function, fine);
      if (node->kindOf(name) == torch::jit::AttributeKind::gs)
        for (const auto& graph : node->gs(name)) check_block(*graph->block(), file, function, fine);
    }
  }
}

}  // namespace

bool may_use(const std::string& class_name) {
  if (!class_name.starts_with(kClasses)) return true;
  const std::string name = class_name.substr(kClasses.size());
  const std::string space = name.substr(0, name.find('.'));
  return holds(kClassNamespaces, space) || of_extension(space);
}

bool may_call(const c10::Symbol& op) {
  if (holds(kRefused, op.toQualString())) return false;
  const auto& overloads = torch::jit::getAllOperatorsFor(op);
  if (overloads.empty()) return true;  // the language itself: prim::If, prim::CallMethod
  const std::string space = op.ns().toUnqualString();
  if (!holds(kNamespaces, space) && !of_extension(space)) return false;
  const bool language = op == torch::jit::prim::Print || op == torch::jit::prim::tolist;
  return std::all_of(overloads.begin(), overloads.end(), [&](const auto& overload) {
    const auto& schema = overload->schema();
    // A vararg operator of prim belongs to the language or to an optimized graph, which trusts its attributes.
    if (space == "prim" && schema.is_vararg() && !language) return false;
    // Our operators that compute return tensors; the others attach state to weights, and read and write files.
    if (space == "fp8" && !gives_tensors(schema) && schema.name() != runtime::kHasScriptNodesOp) return false;
    return stays_inside(schema);
  });
}

void check_source(const std::shared_ptr<torch::jit::Source>& source, const std::string& file) {
  require_shallow(source, file);
  torch::jit::Parser parser(source);
  auto& lexer = parser.lexer();
  const auto skip_line = [&] {
    while (lexer.cur().kind != torch::jit::TK_NEWLINE && lexer.cur().kind != torch::jit::TK_EOF) lexer.next();
    lexer.nextIf(torch::jit::TK_NEWLINE);
  };
  // Older files begin with their version and import what they use; LibTorch passes over both.
  if (lexer.cur().kind == torch::jit::TK_IDENT && lexer.cur().text() == "op_version_set") skip_line();
  SourceCheck check(file);
  while (lexer.cur().kind != torch::jit::TK_EOF) {
    if (lexer.nextIf(torch::jit::TK_IMPORT))
      skip_line();
    else if (lexer.cur().kind == torch::jit::TK_CLASS_DEF)
      check.visit(parser.parseClass());
    else
      check.visit(parser.parseFunction(/*is_method=*/false));
  }
}

void check_code(const torch::jit::CompilationUnit& code, const std::string& file) {
  std::unordered_set<c10::Symbol> fine;
  for (auto* function : code.get_functions()) {
    auto* graph = torch::jit::tryToGraphFunction(*function);
    if (graph == nullptr) continue;
    graph->ensure_defined();
    std::string name = function->qualname().qualifiedName();
    if (name.starts_with("__torch__.")) name.erase(0, 10);
    check_block(*graph->graph()->block(), file, name, fine);
    for (const auto* input : graph->graph()->inputs())
      if (is_foreign(*input->type())) fail(file, name, input->type()->repr_str());
  }
}

namespace {

using caffe2::serialize::PyTorchStreamReader;
using Object = c10::intrusive_ptr<c10::ivalue::Object>;

constexpr std::size_t kMaxCode = 64 << 20;  // bytes of all code, which is compressed in the file

/// Compiles the code of a file and unpickles its objects; runs none of it.
class ScriptArchive {
 public:
  ScriptArchive(std::shared_ptr<caffe2::serialize::ReadAdapterInterface> bytes, std::string file)
      : file_(std::move(file)),
        size_(bytes->size()),
        reader_(std::move(bytes)),
        importer_(
            code_, &constants_, [this](const std::string& qualifier) { return source(qualifier); }, reader_.version()) {
  }

  torch::jit::Module read() {
    if (reader_.hasRecord("model.json"))
      io::fail<io::Error>("{}: found a TorchScript file of before PyTorch 1.4, allowed: of a later one", file_);
    check_sizes();
    torch::jit::populate_upgraders_graph_map();
    const c10::IValue constants = unpickle("constants");
    constants_ = constants.toTupleRef().elements().vec();
    const c10::IValue data = unpickle("data");
    TORCH_CHECK(data.isObject(), "data.pkl is no module");
    check_code(*code_, file_);
    return torch::jit::Module(data.toObject());
  }

  /// True if a class restores its objects by itself, by __setstate__.
  bool restores() const { return restores_; }

 private:
  /// Pickles and tensors are stored as they are: what would unpack to more than the file is refused unread.
  void check_sizes() {
    std::size_t sum = 0;
    for (const auto& name : reader_.getAllRecords()) {
      if (name.starts_with("constants") || name.starts_with("data")) sum += reader_.getRecordSize(name);
      if (sum > size_)
        io::fail<io::Error>("{}: {}: found tensors that unpack to more than the file's {} bytes", file_,
                            io::printable(name), size_);
    }
  }

  std::shared_ptr<torch::jit::Source> source(const std::string& qualifier) {
    std::string name = "code/" + qualifier + ".py";
    std::replace(name.begin() + 5, name.end() - 3, '.', '/');
    if (!reader_.hasRecord(name)) return nullptr;
    code_size_ += reader_.getRecordSize(name);
    if (code_size_ > kMaxCode)
      io::fail<io::Error>("{}: {}: found code of over {} MiB", file_, io::printable(name), kMaxCode >> 20);
    const auto [text, size] = reader_.getRecord(name);
    auto code = std::make_shared<torch::jit::Source>(std::string_view(static_cast<const char*>(text.get()), size), name,
                                                     /*starting_line_no=*/1);
    check_source(code, file_);
    return code;
  }

  c10::IValue unpickle(const std::string& name) {
    return torch::jit::readArchiveAndTensors(
        name, "", "",
        [this](const c10::QualifiedName& type) { return c10::StrongTypePtr(code_, importer_.loadType(type)); },
        [this](const at::StrongTypePtr& type, const c10::IValue& state) { return object(type, state); }, at::kCPU,
        reader_);
  }

  /// As LibTorch makes one, but for __setstate__.
  Object object(const at::StrongTypePtr& type, const c10::IValue& state) {
    const auto object_class = type.type_->expect<c10::ClassType>();
    if (!may_use(object_class->name()->qualifiedName()))
      io::fail<io::Error>("{}: found an object of {}, allowed: objects of the file's own classes", file_,
                          io::printable(object_class->name()->qualifiedName()));
    if (object_class->name() == runtime::script_nodes_type()->containedType(0)->expectRef<c10::ClassType>().name()) {
      auto made = c10::ivalue::Object::create(type, object_class->numAttributes());
      object_class->getMethod("__setstate__")({made, state});  // ours, in C++
      return made;
    }
    if (object_class->findMethod("__getstate__") != nullptr && object_class->findMethod("__setstate__") != nullptr) {
      restores_ = true;
      return unrestored(object_class);
    }
    const auto values = state.toGenericDict();
    auto made = c10::ivalue::Object::create(type, object_class->numAttributes());
    for (std::size_t i = 0; i < object_class->numAttributes(); ++i)
      made->setSlot(i, values.at(object_class->getAttributeName(i)));
    return made;
  }

  /// An object with what its class alone says.
  Object unrestored(const c10::ClassTypePtr& object_class) {
    auto made = c10::ivalue::Object::create({code_, object_class}, object_class->numAttributes());
    if (!object_class->is_module()) return made;
    for (std::size_t i = 0; i < object_class->numAttributes(); ++i) {
      const auto& attribute = object_class->getAttribute(i);
      if (const auto module = attribute->is_module() ? attribute->cast<c10::ClassType>() : nullptr) {
        made->setSlot(i, unrestored(module));
      } else if (attribute->is_module()) {
        io::fail<io::Error>("{}: {}: its __setstate__ decides its module {}, allowed: one of a known class", file_,
                            io::printable(object_class->name()->qualifiedName()),
                            io::printable(object_class->getAttributeName(i)));
      } else if (attribute->kind() == c10::TypeKind::TensorType) {
        made->setSlot(i, at::empty({0}));
      }
    }
    return made;
  }

  std::string file_;
  std::size_t size_, code_size_ = 0;
  PyTorchStreamReader reader_;
  std::shared_ptr<torch::jit::CompilationUnit> code_ = std::make_shared<torch::jit::CompilationUnit>();
  std::vector<c10::IValue> constants_;
  torch::jit::SourceImporter importer_;
  bool restores_ = false;
};

/// Errors of LibTorch, whose parser and lexer have kinds of their own, in a line that names the file.
template <class Body>
torch::jit::Module read_with(const std::filesystem::path& path, const Body& body) {
  io::open_regular(path);  // a missing file or a folder has a better message here than in LibTorch
  std::string text;
  try {
    return body(std::make_shared<caffe2::serialize::FileAdapter>(path.string()));
  } catch (const io::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = error.what();
  }
  text.erase(0, text.find_first_not_of('\n'));
  io::fail<io::Error>("{}: not a TorchScript file that LibTorch can load: {}", path.string(),
                      io::printable(text.substr(0, text.find('\n'))));
}

}  // namespace

torch::jit::Module read_script_modules(const std::filesystem::path& path) {
  return read_with(path, [&](const auto& bytes) { return ScriptArchive(bytes, path.string()).read(); });
}

torch::jit::Module read_script(const std::filesystem::path& path) {
  return read_with(path, [&](const auto& bytes) {
    ScriptArchive archive(bytes, path.string());
    auto model = archive.read();
    // Code that restores objects has been looked at by now; LibTorch runs it, with the care that files of old need.
    return archive.restores() ? torch::jit::load(bytes, at::Device(at::kCPU), /*load_debug_files=*/false) : model;
  });
}

}  // namespace fp8::commands
