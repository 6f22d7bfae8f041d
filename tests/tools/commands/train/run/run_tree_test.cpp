// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/run_tree.h"

#include "fp8/tools/commands/train/train_options.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

RunTree tree_of(const std::vector<std::string>& files, const std::vector<std::string>& dotted = {},
                const std::vector<std::string>& environment = {}, const std::string& stage = "fit") {
  const test::TempDir folder;
  std::filesystem::current_path(folder.path());
  std::vector<std::filesystem::path> paths;
  for (const auto& text : files) {
    paths.push_back(std::string(1, static_cast<char>('a' + paths.size())) + ".yaml");
    std::ofstream(paths.back()) << text;
  }
  auto tree = read_run(paths, stage, environment, dotted);
  std::filesystem::current_path("/");
  return tree;
}

std::string tree_error(const std::vector<std::string>& files, const std::vector<std::string>& dotted = {},
                       const std::vector<std::string>& environment = {}) {
  const std::string error = error_of<io::Error>([&] { tree_of(files, dotted, environment); });
  if (!error.empty()) std::filesystem::current_path("/");
  return error;
}

TEST(RunTree, LaterOnesWin) {
  const auto tree = tree_of({"seed_everything: 1\ntrainer:\n  max_steps: 1\n  precision: fp8\n",
                             "trainer:\n  max_steps: 2\n  accelerator: hpu\n"},
                            {"--trainer.accelerator=cpu", "--trainer.limit_val_batches=0.5"},
                            {"PL_FIT__TRAINER__MAX_STEPS=9", "PL_TRAINER__DEVICES=1", "PL_TEST__TRAINER__MAX_STEPS=7",
                             "PL_DEEPSPEED_CONFIG_PATH=x", "PLACE=here", "PL_SEED_EVERYTHING=5"});
  EXPECT_EQ(tree.value(), io::Json::parse(R"({"trainer": {"max_steps": 2, "devices": 1,
      "precision": "fp8", "accelerator": "cpu", "limit_val_batches": 0.5}, "seed_everything": 1})"));
  EXPECT_EQ(tree.place("trainer.max_steps"), "b.yaml:2: trainer.max_steps");
  EXPECT_EQ(tree.source("trainer.precision"), "a.yaml:4");
  EXPECT_EQ(tree.source("trainer.devices"), "PL_TRAINER__DEVICES");
  EXPECT_EQ(tree.source("trainer.accelerator"), "command line");
  EXPECT_EQ(tree.source("model"), "default");
  EXPECT_EQ(tree.find("model"), nullptr);
}

TEST(RunTree, AnotherClassLosesTheArgumentsOfTheFirst) {
  const auto tree = tree_of({"optimizer: {class_path: Adam, init_args: {lr: 0.1, eps: 1e-6}}",
                             "optimizer: {class_path: SGD, init_args: {momentum: 0.9}}"},
                            {"--optimizer.lr=0.2"});
  const auto part = tree.part("optimizer");
  EXPECT_EQ(part.class_path, "SGD");
  EXPECT_EQ(part.init_args, io::Json::parse(R"({"momentum": 0.9, "lr": 0.2})"));
  EXPECT_EQ(part.place, "b.yaml:1: optimizer.class_path");
  EXPECT_EQ(part.places.at("lr"), "command line: optimizer.init_args.lr");
  // An equal class keeps them.
  EXPECT_EQ(
      tree_of({"model: {class_path: Net, init_args: {a: 1, b: 2}}", "model: {class_path: Net, init_args: {b: 3}}"})
          .part("model")
          .init_args,
      io::Json::parse(R"({"a": 1, "b": 3})"));
  const auto bare = tree_of({"model: {class_path: Net, init_args: {a: 1, b: 2}}", "model:\n  b: 3\n"}).part("model");
  EXPECT_EQ(bare.init_args, io::Json::parse(R"({"a": 1, "b": 3})"));
  EXPECT_EQ(bare.places.at("b"), "b.yaml:2: model.init_args.b");
  EXPECT_EQ(tree_of({"model: Net"}, {"--model.hidden=3"}).part("model").init_args["hidden"], 3);
}

TEST(RunTree, AStageHasItsOwn) {
  const std::string file =
      "trainer: {max_steps: 1}\nfit:\n  trainer: {max_steps: 2}\ntest:\n  trainer: {max_steps: 3}\n";
  EXPECT_EQ(*tree_of({file}).find("trainer.max_steps"), 2);
  EXPECT_EQ(*tree_of({file}, {}, {}, "test").find("trainer.max_steps"), 3);
  EXPECT_EQ(*tree_of({file}, {}, {}, "predict").find("trainer.max_steps"), 1);
  EXPECT_EQ(tree_of({file}).source("trainer.max_steps"), "a.yaml:3");
}

TEST(RunTree, ListsAreReplacedAndPartsOfTheTrainerMayStandAbove) {
  const auto tree =
      tree_of({"callbacks:\n- EarlyStopping\n- class_path: ModelCheckpoint\n  init_args:\n    save_top_k: 2\n"});
  EXPECT_EQ(tree.part("trainer.callbacks.0").class_path, "EarlyStopping");
  const auto part = tree.part("trainer.callbacks.1");
  EXPECT_EQ(part.places.at("save_top_k"), "a.yaml:5: trainer.callbacks.1.init_args.save_top_k");
  EXPECT_EQ(tree_of({"trainer: {callbacks: [a, b]}", "trainer: {callbacks: [c]}"}).find("trainer.callbacks")->size(),
            1);
}

TEST(RunTree, TextIsAFileThatSaysTheSame) {
  const auto tree = tree_of(
      {"trainer:\n  max_steps: 1\n  callbacks:\n  - class_path: E\n    init_args: {a: null, b: 1e-3}\nmodel: N\n"},
      {"--seed_everything.x=1"});
  const std::string text = tree.text();
  EXPECT_THAT(text, AllOf(HasSubstr("  max_steps: 1  # a.yaml:2\n"), HasSubstr("x: 1  # command line\n")));
  EXPECT_EQ(io::parse_yaml(text, "again").value, tree.value()) << text;
}

TEST(RunTree, MistakesAreNamedByPlace) {
  EXPECT_EQ(tree_error({"trainer: {}\nmodle: x\n"}).substr(0, 42), "a.yaml:2: unknown key 'modle', allowed: se");
  EXPECT_THAT(tree_error({"modle: x\n"}), HasSubstr("the nearest is 'model'"));
  EXPECT_THAT(tree_error({"- 1\n"}), HasSubstr("a.yaml:1: found [1], allowed: an object"));
  EXPECT_THAT(tree_error({"trainer: 5\n"}, {"--trainer.max_steps=3"}),
              HasSubstr("command line: trainer.max_steps: found 5 at 'trainer', allowed: an object"));
  EXPECT_THAT(tree_error({}, {"--trainer.max_steps"}), HasSubstr("allowed: --trainer.max_steps=VALUE"));
  EXPECT_THAT(tree_error({}, {"--trainer.max_steps=[1"}),
              HasSubstr("--trainer.max_steps:2:1: while parsing a flow sequence that begins in line 1"));
  EXPECT_THAT(tree_error({}, {}, {"PL_TRAINER__MAX_STEPS={"}),
              HasSubstr("PL_TRAINER__MAX_STEPS:2:1: while parsing a flow node"));
  const auto part_error = [](const std::string& text) -> std::string {
    return error_of<io::Error>([&] { tree_of({text}).part("model"); });
  };
  EXPECT_GOLDEN(part_error(text));
}

TEST(RunTree, DottedArguments) {
  for (const char* yes : {"--trainer.max_steps=5", "--model.init_args.x=1", "--fp8.out=a", "--callbacks.0=x"})
    EXPECT_TRUE(is_dotted(yes)) << yes;
  for (const char* no : {"--steps=5", "--model=a.b", "--data", "x.y=1", "--unknown.key=1", "--lr=0.5"})
    EXPECT_FALSE(is_dotted(no)) << no;
}

TEST(TrainerKeys, SecondsOfMaxTime) {
  const auto seconds = [](const char* text) { return trainer::seconds_of(io::Json::parse(text), "a.yaml:1"); };
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds(R"("01:02:03:04")"), 86400 + 2 * 3600 + 3 * 60 + 4);
  EXPECT_EQ(seconds(R"({"weeks": 1, "days": 2, "hours": 3, "minutes": 4, "seconds": 5.5})"),
            7 * 86400 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5.5);
  for (const char* bad : {R"("12:00")", R"("1:2:3:x")", R"("1:2:3:4:5")", R"({"years": 1})", R"({"days": "1"})", "[1]"})
    EXPECT_THROW(seconds(bad), io::Error) << bad;
}

TEST(TrainerKeys, TextOfScalars) {
  EXPECT_EQ(option_text(5, ""), "5");
  EXPECT_EQ(option_text(true, ""), "true");
  EXPECT_EQ(option_text(1e-8, ""), "1e-08");
  EXPECT_EQ(option_text(0.1, ""), "0.1");
  EXPECT_EQ(option_text("a b", ""), "a b");
  EXPECT_THROW(option_text(nullptr, ""), io::Error);
  EXPECT_THROW(option_text(io::Json::array(), ""), io::Error);
}

TEST(TrainerKeys, OwnClass) {
  EXPECT_EQ(trainer::own_name("fp8.LanguageModel"), kLanguageModel);
  EXPECT_EQ(trainer::own_name("LanguageModel"), kLanguageModel);
  EXPECT_EQ(trainer::own_name("other.LanguageModel"), "other.LanguageModel");
}

TEST(TrainerKeys, AFileWithEveryKeyOfLightningsTrainerIsTaken) {
  CLI::App app("", "train");
  Options options(app);
  std::string text;
  std::vector<std::string> list;
  for (const char* name : {"--device", "--strategy", "--precision", "--out", "--steps", "--epochs", "--max-time",
                           "--grad-accum", "--clip", "--clip-by", "--profile", "--profile-schedule", "--recipe"})
    options.text(name, text, "");
  options.list("--keep", list, "");
  app.parse(std::vector<std::string>{});
  RunTree tree;
  const auto every_key = io::read_file(FP8_SOURCE_DIR "/tests/tools/commands/train/run/every_key.yaml", 1 << 20);
  tree.merge(io::parse_yaml(every_key, "a.yaml"), "fit");
  RunSettings run;
  take_trainer(tree, options, run);
  EXPECT_EQ(options.source_of("--precision"), "a.yaml:7: trainer.precision");
  EXPECT_EQ(options.source_of("--clip"), "a.yaml:29: trainer.gradient_clip_val");
  EXPECT_EQ(options.source_of("--steps"), "default");
  EXPECT_EQ(std::get<std::int64_t>(*run.trainer.limit_test_batches), 3);
  EXPECT_EQ(std::get<double>(*run.trainer.limit_predict_batches), 0.5);
  EXPECT_EQ(run.trainer.accumulate_grad_batches, (std::map<std::int64_t, std::int64_t>{{0, 2}, {4, 8}}));
  EXPECT_EQ(run.trainer.deterministic, "warn");
  EXPECT_FALSE(run.trainer.limit_train_batches);
}

}  // namespace
}  // namespace fp8::commands
