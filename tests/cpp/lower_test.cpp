// What becomes of graphs when they are planned, and that they can be written as long as they are not.
#include "plan/lower.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "graph_text.hpp"
#include "model/export.hpp"
#include "model/import.hpp"

namespace backpass {
namespace {

std::unique_ptr<Graph> chain() {
  return parse_graph(R"(graph 'g' (%x: float32[n])
    %a = Identity(%x) 'copy'
    %b = Exp(%a)
    %c = Relu(%b)
    return %c)");
}

TEST(Lower, LeavesTheGraphAsItIs) {
  PassManager manager({.disabled = {}, .verify = true}, kEveryPass);
  std::unique_ptr<Graph> graph = chain();
  manager.run(*graph, Side::both);
  const std::string before = print(*graph);
  std::unique_ptr<Graph> lowered = lower(*graph, manager);
  EXPECT_EQ(print(*graph), before);
  ASSERT_EQ(lowered->nodes().size(), 1U);
  EXPECT_EQ(lowered->nodes().front()->op, "Tile");
}

TEST(Lower, NoFileHoldsWhatItMakes) {
  PassManager manager({.disabled = {}, .verify = true}, kEveryPass);
  std::unique_ptr<Graph> lowered = lower(*chain(), manager);
  expect_error<InternalBug>([&] { export_graph(*lowered); }, {"[backpass.Tile ", "has no form in a file"});
  onnx_io::ModelProto model = export_graph(*chain());
  model.opset_import.push_back({"backpass", 1});
  model.graph.node.front().domain = "backpass";
  model.graph.node.front().op_type = "Tile";
  const Import import = import_model(model);
  ASSERT_EQ(import.problems.size(), 1U);
  EXPECT_EQ(import.problems.front().text,
            "[backpass.Tile 'copy'] operator: got backpass.Tile, which exists in plans only, expected operators of a "
            "model; export it before it is planned");
}

TEST(Lower, FilesSayWhichOutputsAreGradients) {
  std::unique_ptr<Graph> graph = parse_graph(R"(graph 'g' (%x: float32[n])
    %y = Exp(%x)
    %dx = Mul(%y, %x)
    %mean = Relu(%x)
    return %y, gradient %dx, %mean)");
  onnx_io::ModelProto model = export_graph(*graph);
  const Import again = import_model(model);
  ASSERT_TRUE(again.problems.empty());
  EXPECT_EQ(again.graph->first_gradient, 1U);
  EXPECT_EQ(again.graph->gradient_count, 1U);
  model.graph.output[1].metadata_props.clear();
  EXPECT_EQ(import_model(model).graph->gradient_count, 0U);
}

}  // namespace
}  // namespace backpass
