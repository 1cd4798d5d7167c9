#include "pass_testing.hpp"

namespace backpass {
namespace {

using Ops = std::vector<std::string>;

Value* extent(PassFixture& f, Value* x, std::int64_t axis) {
  return f.b.op("Gather", {f.b.op("Shape", {x}), f.b.ints({axis})}, {{"axis", std::int64_t{0}}});
}

TEST(KnownInts, AFixedExtentBecomesAConstant) {
  PassFixture f;
  Value* x = f.input({2, 6}, DType::float32, {"batch"});
  Value* half = f.b.op("Div", {extent(f, x, 1), f.b.ints({2})});
  f.output(f.b.op("Slice", {x, f.b.ints({0}), half, f.b.ints({1})}));
  EXPECT_EQ(f.apply(known_ints), Ops{"Slice"});
}

TEST(KnownInts, EqualExpressionsAreComputedOnce) {
  PassFixture f;
  Value* x = f.input({3, 6}, DType::float32, {"batch"});
  Value* y = f.b.op("Tanh", {x});
  Value* a =
      f.b.op("Range", {f.b.scalar(0, DType::int64), f.b.op("Squeeze", {extent(f, x, 0)}), f.b.scalar(1, DType::int64)});
  Value* b =
      f.b.op("Range", {f.b.scalar(0, DType::int64), f.b.op("Squeeze", {extent(f, y, 0)}), f.b.scalar(1, DType::int64)});
  f.output(f.b.op("Add", {a, b}));
  auto both = [](Graph& graph, Reports& reports) {
    known_ints(graph, reports);
    merge_duplicates(graph, reports);
  };
  EXPECT_EQ(f.apply(both), (Ops{"Shape", "Gather", "Squeeze", "Range", "Add"}));
}

TEST(KnownInts, OutputsOfTheGraphStay) {
  PassFixture f;
  Value* x = f.input({3, 6}, DType::float32, {"batch"});
  f.output(extent(f, x, 1));
  f.output(extent(f, x, 0));
  f.output(extent(f, f.b.op("Tanh", {x}), 0));
  EXPECT_EQ(f.apply(known_ints).back(), "Gather");
}

}  // namespace
}  // namespace backpass
