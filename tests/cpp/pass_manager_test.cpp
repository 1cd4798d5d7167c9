#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "backpass/backpass.h"
#include "graph_text.hpp"
#include "model/export.hpp"
#include "onnx_io/writer.hpp"
#include "onnx_io_models.hpp"
#include "plan/lower.hpp"

namespace backpass {
namespace {

/// Sessions of all tests in this program look at their graphs after each pass.
[[maybe_unused]] const int kVerifyAll = setenv("BACKPASS_VERIFY_PASSES", "1", 0);

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

std::unique_ptr<Graph> chain() {
  return parse_graph(R"(graph 'g' (%x: float32[n])
    %a = Identity(%x) 'copy'
    %b = Exp(%a)
    %c = Relu(%b)
    return %c)");
}

std::vector<std::string> passes_of(const PassManager& manager) {
  std::vector<std::string> names;
  for (const PassTime& time : manager.times()) names.push_back(time.pass);
  return names;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void rename_first(Graph& graph, Reports& reports) {
  graph.rename(graph.nodes().front()->output(0), "seen");
  reports.push_back({.node = graph.nodes().front()->label(), .what = "renamed", .why = "to be seen"});
}

void break_order(Graph& graph, Reports&) {
  Node& first = *graph.nodes().front();
  Node& last = *graph.nodes().back();
  const std::vector<Value*> inputs = first.inputs;
  graph.set_inputs(first, last.inputs);
  graph.set_inputs(last, inputs);
}

constexpr Pass kSides[] = {
    {"early", rename_first, Side::before, Graphs::plans},
    {"late", remove_identities, Side::after, Graphs::plans},
    {"always", merge_duplicates, Side::both, Graphs::both},
};

TEST(PassManager, RunsWhatBelongsOnThisSideOfDifferentiation) {
  using Names = std::vector<std::string>;
  const std::pair<Side, Names> expectations[] = {{Side::before, {"early", "always"}},
                                                 {Side::after, {"late", "always"}},
                                                 {Side::both, {"early", "late", "always"}}};
  for (const auto& [side, names] : expectations) {
    PassManager manager({}, kSides);
    std::unique_ptr<Graph> graph = chain();
    manager.run(*graph, side);
    EXPECT_EQ(passes_of(manager), names);
  }
}

TEST(PassManager, OnlyWhatChangesGradientsRunsBeforeDifferentiation) {
  PassManager manager({}, kEveryPass);
  std::unique_ptr<Graph> graph = chain();
  manager.run(*graph, Side::before);
  std::vector<std::string> names;
  for (const PassTime& time : manager.times()) names.push_back(time.pass);
  EXPECT_EQ(names,
            (std::vector<std::string>{"recognise_gelu", "recognise_norms", "move_rows", "slice_concats", "move_slices",
                                      "merge_slices", "slices_to_split", "fuse_attention", "chunk_loss"}));
}

TEST(PassManager, ReportsSayWhoDidWhat) {
  PassManager manager({}, kEveryPass);
  std::unique_ptr<Graph> graph = chain();
  manager.run(*graph, Side::both);
  manager.lower(*graph);
  ASSERT_EQ(manager.reports().size(), 2U);
  const Report& first = manager.reports().front();
  EXPECT_EQ(first.pass, "remove_identities");
  EXPECT_EQ(first.node, "[Identity 'copy']");
  EXPECT_EQ(first.what, "bypassed [Identity 'copy']");
  EXPECT_EQ(manager.reports().back().pass, "fuse_tiles");
  EXPECT_EQ(manager.reports().back().bytes_saved, "4*n");
  EXPECT_EQ(manager.lines().front(), first.what);
  for (const PassTime& time : manager.times()) EXPECT_GE(time.seconds, 0) << time.pass;
}

TEST(PassManager, PassesAreSwitchedOffByName) {
  PassManager manager({.disabled = {"fuse_tiles"}, .verify = false}, kEveryPass);
  std::unique_ptr<Graph> graph = chain();
  manager.run(*graph, Side::both);
  manager.lower(*graph);
  EXPECT_EQ(graph->nodes().size(), 2U);
  for (const PassTime& time : manager.times()) EXPECT_NE(time.pass, "fuse_tiles");
}

TEST(PassManager, TheEnvironmentSwitchesOffMore) {
  const Variable variable("BACKPASS_DISABLE_PASSES", "remove_identities, merge_duplicates");
  PassManager manager({.disabled = {"fuse_tiles"}, .verify = false}, kEveryPass);
  std::unique_ptr<Graph> graph = chain();
  manager.run(*graph, Side::both);
  manager.lower(*graph);
  EXPECT_TRUE(manager.reports().empty());
  EXPECT_EQ(graph->nodes().size(), 3U);
}

TEST(PassManager, UnknownNamesAreRefusedWithTheKnownOnes) {
  const std::string given = message_of([] { PassManager({.disabled = {"fuse_all"}, .verify = false}, kEveryPass); });
  EXPECT_TRUE(given.starts_with("disabled_passes: got 'fuse_all', expected names among function_gradients, ")) << given;
  const Variable variable("BACKPASS_DISABLE_PASSES", "typo");
  const std::string read = message_of([] { PassManager manager({}, kEveryPass); });
  EXPECT_TRUE(read.starts_with("BACKPASS_DISABLE_PASSES: got 'typo'")) << read;
}

TEST(PassManager, FilesGetOnlyWhatOtherRuntimesKnow) {
  PassManager manager({}, kEveryPass);
  std::unique_ptr<Graph> graph = chain();
  manager.run(*graph, std::vector<std::string>{"remove_identities"});
  EXPECT_EQ(passes_of(manager), std::vector<std::string>{"remove_identities"});
  const std::string text = message_of([&] { manager.run(*graph, std::vector<std::string>{"fuse_tiles"}); });
  EXPECT_NE(text.find("got 'fuse_tiles', expected names among remove_dead_nodes"), std::string::npos) << text;
}

TEST(PassManager, ABrokenGraphIsBlamedOnItsPass) {
  constexpr Pass kBroken[] = {{"break_order", break_order, Side::after, Graphs::plans}};
  PassManager manager({.disabled = {}, .verify = true}, kBroken);
  std::unique_ptr<Graph> graph = chain();
  const std::string text = message_of([&] { manager.run(*graph, Side::after); });
  EXPECT_NE(text.find("pass break_order left graph 'g' broken: [Identity 'copy'] reads 'b' before it is defined"),
            std::string::npos)
      << text;
}

TEST(PassManager, BodiesOfControlFlowAreRewritten) {
  std::unique_ptr<Graph> graph = parse_graph(R"(graph 'g' (%c: bool[], %x: float32[n])
    %y = If(%c)
      then_branch:
        graph 'then' () captures %x
          %a = Identity(%x) 'copy'
          %b = Exp(%a)
          return %b
      else_branch:
        graph 'else' () captures %x
          %d = Relu(%x)
          return %d
    return %y)");
  PassManager manager({.disabled = {}, .verify = true}, kEveryPass);
  manager.run(*graph, Side::after);
  EXPECT_EQ(manager.lines(), std::vector<std::string>{"bypassed [Identity 'copy']"});
}

TEST(PassManager, SessionsOfCTakeNames) {
  const onnx_io::TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.onnx";
  onnx_io::write_file(path, onnx_io::write_model(export_graph(*chain())));
  BpSessionOptions options = {};
  BpSession* session = nullptr;
  options.disabled_passes = "fuse_tiles,remove_identities";
  EXPECT_EQ(bp_create_session(path.c_str(), &options, &session), BP_OK) << bp_last_error();
  bp_release_session(session);
  options.disabled_passes = "typo";
  EXPECT_EQ(bp_create_session(path.c_str(), &options, &session), BP_INVALID_INPUT);
  EXPECT_TRUE(std::string(bp_last_error()).starts_with("disabled_passes: got 'typo'")) << bp_last_error();
}

/// In opset 11 the axes of ReduceSum are an attribute, which its kernel does not know.
TEST(FoldConstants, NodesInTheFormOfAFile) {
  std::unique_ptr<Graph> graph = parse_graph(R"(graph 'g' (%x: float32[n])
    %c = float32[2,3]{1,2,3,4,5,6}
    %s = ReduceSum(%c) {axes=[1], keepdims=0}
    %y = Add(%s, %s)
    return %y)");
  for (Node* node : graph->nodes()) node->opset = 11;
  Reports reports;
  fold_constants(*graph, reports);
  EXPECT_TRUE(graph->nodes().empty());
  ASSERT_TRUE(graph->outputs.front()->constant);
  EXPECT_EQ(graph->outputs.front()->constant->to_doubles(), (std::vector<double>{12, 30}));
}

TEST(GraphText, IsReadAsItIsPrinted) {
  const std::string text = R"(graph 'g' (%x: float32[n,3], %flag: bool[])
  %w = float32[3,4]
  %s = float32[2]{0.5,-1}
  %p: float32[n,4] = MatMul(%x, %w) 'product'
  %y: float32[n,4], _ = Dropout(%p, _, %flag) {seed=3}
  %z: float32[4,n] = Transpose(%y) {perm=[1,0]} 'turned'
  return %z, %p
)";
  EXPECT_EQ(print(*parse_graph(text)), text);
}

}  // namespace
}  // namespace backpass
