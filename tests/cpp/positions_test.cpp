#include "gradient/positions.hpp"

#include "gradient_testing.hpp"

namespace backpass {
namespace {

using Numbers = std::vector<double>;

/// A node whose gradient is being written: y = Identity(x).
struct Positions : RuleFixture {
  Value* x;
  Value* dy;
  GradientContext g;

  Positions(Dims dims, std::vector<std::string> symbols, Dims dy_dims, const Numbers& flowing)
      : x(input(std::move(dims), std::move(symbols))),
        dy(b.constant(Tensor::from<double>(DType::float64, std::move(dy_dims), flowing))),
        g(context(b.op("Identity", {x}), {dy})) {}
};

TEST(Positions, CountElementsInMemoryOrder) {
  for (const char* symbol : {"", "n"}) {
    Positions f({2, 3}, {symbol}, {1}, {0});
    Value* positions = positions_of(f.g, f.x);
    EXPECT_EQ(positions->type.dtype, DType::int64);
    EXPECT_EQ(f.contents(positions), (Numbers{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(f.run().at(0).dims(), (Dims{2, 3}));
  }
}

TEST(Positions, ElementsOfOnePlaceAreAdded) {
  for (const char* symbol : {"", "n"}) {
    Positions f({2, 2}, {symbol}, {3}, {1, 10, 100});
    EXPECT_EQ(f.contents(add_at(f.g, f.b.ints({3, 0, 3}), f.dy, f.x)), (Numbers{10, 0, 0, 101}));
    EXPECT_EQ(f.run().at(0).dims(), (Dims{2, 2}));
  }
}

TEST(Positions, SlicesOfOneIndexAreAdded) {
  for (const char* symbol : {"", "n"}) {
    Positions rows({3, 2}, {symbol}, {3, 2}, {1, 2, 10, 20, 100, 200});
    EXPECT_EQ(rows.contents(add_slices_at(rows.g, rows.b.ints({2, 0, 2}), rows.dy, rows.x, 0)),
              (Numbers{10, 20, 0, 0, 101, 202}));
    for (std::int64_t axis : {std::int64_t{1}, std::int64_t{-1}}) {
      Positions columns({2, 3}, {symbol}, {2, 2}, {1, 2, 10, 20});
      EXPECT_EQ(columns.contents(add_slices_at(columns.g, columns.b.ints({2, -2}), columns.dy, columns.x, axis)),
                (Numbers{0, 2, 1, 0, 20, 10}));
    }
  }
}

TEST(Positions, IndicesOfAnyRank) {
  Positions f({2, 3}, {}, {2, 2, 2}, {1, 2, 3, 4, 10, 20, 30, 40});
  Value* indices = f.b.op("Reshape", {f.b.ints({0, 1, 1, 2}), f.b.ints({2, 2})});
  EXPECT_EQ(f.contents(add_slices_at(f.g, indices, f.dy, f.x, 1)), (Numbers{1, 5, 4, 10, 50, 40}));
  Positions scalar({2, 3}, {}, {3}, {1, 2, 3});
  EXPECT_EQ(scalar.contents(add_slices_at(scalar.g, scalar.b.integer(1), scalar.dy, scalar.x, 0)),
            (Numbers{0, 0, 0, 1, 2, 3}));
}

TEST(Positions, TheyAreTheGradientOfGather) {
  for (std::int64_t axis : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}}) {
    GradientFixture f;
    Value* x = f.input({3, 3, 3}, {"", "n"});
    f.output(f.b.op("Gather", {x, f.b.ints({2, 0, 2, -1})}, {{"axis", axis}}));
    f.expect_right_gradients({x}, {.standard_only = true});
  }
}

TEST(Positions, ScalarsMakeAVector) {
  Positions f({2}, {}, {1}, {0});
  EXPECT_EQ(f.contents(vector_of(f.g, {f.b.integer(4), f.b.integer(7)})), (Numbers{4, 7}));
  EXPECT_EQ(f.contents(vector_of(f.g, {f.b.integer(4)})), Numbers{4});
  EXPECT_EQ(f.run().at(0).dims(), Dims{1});
  EXPECT_EQ(f.contents(count_up(f.g, f.b.integer(3))), (Numbers{0, 1, 2}));
}

TEST(Positions, AttributesAreThoseOfTheNode) {
  Positions f({2}, {}, {1}, {0});
  Value* y = f.b.op("Softmax", {f.x}, {{"axis", std::int64_t{0}}});
  const AttributeList attributes = attributes_of(*y->producer);
  ASSERT_EQ(attributes.size(), 1U);
  EXPECT_EQ(attributes[0].first, "axis");
  EXPECT_EQ(std::get<std::int64_t>(attributes[0].second), 0);
}

}  // namespace
}  // namespace backpass
