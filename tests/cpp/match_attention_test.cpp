// Attention in every way it is written: what is found computes the same.
#include "passes/match_attention.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "graph_text.hpp"
#include "pass_testing.hpp"

namespace backpass {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeast = std::numeric_limits<float>::lowest();

/// One way of many to write attention, drawn at random. Where masks have an axis of queries, the last sees no key.
class Written : public PassFixture {
 public:
  explicit Written(unsigned seed) { generator.seed(seed); }

  Value* make() {
    dtype_ = draw(2) == 0 ? DType::float32 : DType::float64;
    dims_ = {1 + draw(3), 1 + draw(3), 1 + draw(5), 1 + draw(6)};
    const std::int64_t size = 1 + draw(4);
    is_symbolic_ = draw(2) == 0;
    Value* q = operand({dims_[0], dims_[1], dims_[2], size}, {"b", "h", "s", ""});
    Value* keys = operand({dims_[0], dims_[1], size, dims_[3]}, {"b", "h", "", "t"});
    Value* v = operand({dims_[0], dims_[1], dims_[3], 1 + draw(4)}, {"b", "h", "t", ""});
    q = scaled(q), keys = scaled(keys);
    Value* x = scaled(b.op("MatMul", {q, keys}));
    for (std::int64_t i = draw(3); i > 0; --i) x = masked(x);
    x = b.op("Softmax", {guarded(x)}, {{"axis", std::int64_t{draw(2) == 0 ? -1 : 3}}});
    return b.op("MatMul", {dropped(zeroed(x)), v});
  }

  std::size_t mask_count = 0;
  bool has_dropout = false;

 private:
  std::int64_t draw(std::int64_t below) { return std::uniform_int_distribution<std::int64_t>(0, below - 1)(generator); }

  Value* operand(Dims dims, std::vector<std::string> symbols) {
    if (!is_symbolic_) symbols.clear();
    return input(std::move(dims), dtype_, std::move(symbols));
  }

  Value* scaled(Value* x) {
    if (draw(2) == 0) return x;
    Value* number = b.scalar(0.3 + static_cast<double>(draw(5)) / 4, x);
    if (draw(2) == 0) return b.op("Div", {x, number});
    return draw(2) == 0 ? b.op("Mul", {x, number}) : b.op("Mul", {number, x});
  }

  /// Extents that scores have, or 1.
  Value* mask_input(DType dtype) {
    Dims dims = dims_;
    std::vector<std::string> symbols{"b", "h", "s", "t"};
    for (std::size_t i = 0; i < 3; ++i) {
      if (draw(2) == 0) dims[i] = 1, symbols[i] = "";
    }
    while (dims.size() > 1 && symbols.front().empty() && dims.front() == 1 && draw(2) == 0) {
      dims.erase(dims.begin()), symbols.erase(symbols.begin());
    }
    if (!is_symbolic_) symbols.clear();
    return input(std::move(dims), dtype == DType::boolean ? DType::float64 : dtype, symbols);
  }

  /// Of the last input, which keys are seen.
  bool is_seen(std::int64_t element) {
    const Dims& dims = feeds.back().tensor.dims();
    const std::int64_t queries = dims.size() > 1 ? dims[dims.size() - 2] : 1;
    return draw(3) != 0 && element / dims.back() % queries != queries - 1;
  }

  Value* added(Value* x, double lowest) {
    Value* mask = mask_input(dtype_);
    Tensor& t = feeds.back().tensor;
    for (std::int64_t i = 0; i < t.size(); ++i) {
      if (is_seen(i)) continue;
      if (dtype_ == DType::float32) {
        t.as<float>()[i] = static_cast<float>(lowest);
      } else {
        t.as<double>()[i] = lowest;
      }
    }
    return draw(2) == 0 ? b.op("Add", {x, mask}) : b.op("Add", {mask, x});
  }

  Value* chosen(Value* x, double lowest) {
    flag_ = mask_input(DType::boolean);
    flag_->type.dtype = DType::boolean;
    hides_ = draw(2) == 0;
    Tensor t(DType::boolean, feeds.back().tensor.dims());
    for (std::int64_t i = 0; i < t.size(); ++i) t.as<bool>()[i] = is_seen(i) != hides_;
    feeds.back().tensor = t;
    Value* low = b.scalar(lowest, x);
    return b.op("Where", {flag_, hides_ ? low : x, hides_ ? x : low});
  }

  Value* masked(Value* x) {
    ++mask_count;
    const double lowest = draw(2) == 0 ? kLeast : -kInfinity;
    is_added_ = draw(2) == 0;
    return is_added_ ? added(x, lowest) : chosen(x, lowest);
  }

  /// Rows of minus infinity are put to zero, now and behind Softmax.
  Value* guarded(Value* x) {
    if (mask_count != 1 || !is_added_ || draw(2) == 0) return x;
    Value* most = b.op("ReduceMax", {x, b.ints({3})}, {{"keepdims", std::int64_t{1}}});
    flag_ = b.op("Equal", {most, b.scalar(-kInfinity, x)}), hides_ = true, zeroes_ = true;
    return b.op("Where", {flag_, b.scalar(0, x), x});
  }

  Value* zeroed(Value* x) {
    Value* zero = b.scalar(0, x);
    if (!zeroes_ && draw(3) == 0) return b.op("Where", {b.op("IsNaN", {x}), zero, x});
    if (!zeroes_ && (mask_count != 1 || is_added_ || draw(2) == 0)) return x;
    return b.op("Where", {flag_, hides_ ? zero : x, hides_ ? x : zero});
  }

  Value* dropped(Value* x) {
    switch (draw(3)) {
      case 0:
        return b.op("Dropout", {x});
      case 1:
        has_dropout = true;
        return b.op("Dropout", {x, b.scalar(0.5, x), b.op("Cast", {b.integer(0)}, {{"to", std::int64_t{9}}})});
      default:
        return b.op("Identity", {x});
    }
  }

  DType dtype_ = DType::float32;
  bool is_symbolic_ = false;
  Dims dims_;
  Value* flag_ = nullptr;
  bool hides_ = false;
  bool is_added_ = false;
  bool zeroes_ = false;
};

/// What RaggedAttention and others make of it.
Value* made_of(Builder& b, const WrittenAttention& found) {
  Value* x = b.op("MatMul", {found.q, found.keys});
  x = b.op("Mul", {x, b.scalar(found.scale, x)});
  Value* mask = joined_mask(b, found);
  const bool is_boolean = mask != nullptr && mask->type.dtype == DType::boolean;
  if (is_boolean) {
    x = b.op("Where", {mask, x, b.scalar(found.unseen == Unseen::all ? kLeast : -kInfinity, x)});
  } else if (mask != nullptr) {
    x = b.op("Add", {x, mask});
  }
  Value* p = b.op("Softmax", {x}, {{"axis", std::int64_t{-1}}});
  if (found.unseen == Unseen::zero) {
    Value* most = b.op("ReduceMax", {x, b.ints({-1})});
    p = b.op("Where", {b.op("Equal", {most, b.scalar(-kInfinity, x)}), b.scalar(0, x), p});
  }
  return b.op("MatMul", {p, found.v});
}

void expect_same(const Tensor& a, const Tensor& b) {
  ASSERT_EQ(a.dims(), b.dims());
  const std::vector<double> x = a.to_doubles();
  const std::vector<double> y = b.to_doubles();
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::isnan(x[i]), std::isnan(y[i])) << "at " << i << ": " << x[i] << " and " << y[i];
    if (std::isnan(x[i])) continue;
    ASSERT_NEAR(x[i], y[i], 1e-5) << "at " << i;
  }
}

TEST(MatchAttention, FindsEveryWayItIsWritten) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Written way(seed);
    Value* result = way.make();
    SCOPED_TRACE(print(way.graph));
    std::optional<WrittenAttention> found = match_attention(*result->producer);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->masks.size(), way.mask_count);
    EXPECT_EQ(found->dropout != nullptr, way.has_dropout);
    if (seed % 2 == 0) take_factors(*found);
    way.output(result);
    way.output(made_of(way.b, *found));
    const std::vector<Tensor> results = way.run();
    ASSERT_NO_FATAL_FAILURE(expect_same(results[0], results[1]));
  }
}

/// Between %s0, the scores, and %p, with which values are multiplied.
bool is_found(const std::string& lines) {
  const std::unique_ptr<Graph> graph = parse_graph(R"(
graph 'g' (%q: float32[2,3,4,4], %k: float32[2,3,4,5], %v: float32[2,3,5,6], %m: float32[4,5], %f: bool[4,5], %h: bool[4,5])
  %two = float32[]{2}
  %zero = float32[]{0}
  %low = float32[]{-inf}
  %least = float32[]{-3e38}
  %few = float32[]{-10000}
  %column = float32[4,1]
  %last = int64[1]{-1}
  %s0 = MatMul(%q, %k)
)" + lines + R"(
  %y = MatMul(%p, %v)
  return %y
)");
  return match_attention(*graph->outputs[0]->producer).has_value();
}

TEST(MatchAttention, LeavesWhatIsSomethingElse) {
  EXPECT_TRUE(is_found("%p = Softmax(%s0)"));
  EXPECT_FALSE(is_found("%p = Softmax(%s0) {axis=2}"));
  EXPECT_FALSE(is_found("%p = Sigmoid(%s0)"));
  EXPECT_TRUE(is_found("%s1 = Where(%f, %s0, %least)\n%p = Softmax(%s1)"));
  EXPECT_FALSE(is_found("%s1 = Where(%f, %s0, %few)\n%p = Softmax(%s1)"));
  EXPECT_FALSE(is_found("%s1 = Where(%f, %s0, %m)\n%p = Softmax(%s1)"));
  EXPECT_FALSE(is_found("%s1 = Add(%s0, %column)\n%p = Softmax(%s1)"));
  EXPECT_FALSE(is_found("%s1 = Add(%s0, %m)\n%s2 = Mul(%s1, %two)\n%p = Softmax(%s2)"));
  EXPECT_TRUE(is_found("%s1 = Add(%s0, %m)\n%s2 = Add(%m, %s1)\n%p = Softmax(%s2)"));
  EXPECT_FALSE(is_found("%s1 = Add(%s0, %m)\n%s2 = Add(%s1, %m)\n%s3 = Add(%s2, %m)\n%p = Softmax(%s3)"));
}

TEST(MatchAttention, LeavesProbabilitiesThatOthersPutToZero) {
  EXPECT_TRUE(is_found("%s1 = Where(%f, %s0, %low)\n%p0 = Softmax(%s1)\n%p = Where(%f, %p0, %zero)"));
  EXPECT_TRUE(is_found("%s1 = Where(%f, %low, %s0)\n%p0 = Softmax(%s1)\n%p = Where(%f, %zero, %p0)"));
  EXPECT_FALSE(is_found("%s1 = Where(%f, %s0, %low)\n%p0 = Softmax(%s1)\n%p = Where(%h, %p0, %zero)"));
  EXPECT_TRUE(is_found("%p0 = Softmax(%s0)\n%bad = IsNaN(%p0)\n%p = Where(%bad, %zero, %p0)"));
  EXPECT_FALSE(is_found("%p0 = Softmax(%s0)\n%bad = IsNaN(%s0)\n%p = Where(%bad, %zero, %p0)"));
  EXPECT_FALSE(is_found("%s1 = Where(%f, %s0, %low)\n%p0 = Softmax(%s1)\n%p = Where(%f, %zero, %p0)"));
  EXPECT_FALSE(is_found("%s1 = Where(%f, %s0, %low)\n%p0 = Softmax(%s1)\n%p = Where(%f, %p0, %two)"));
  EXPECT_FALSE(
      is_found("%a = Add(%s0, %m)\n%s1 = Where(%f, %a, %low)\n%p0 = Softmax(%s1)\n"
               "%p = Where(%f, %p0, %zero)"));
  const std::string dead =
      "%most = ReduceMax(%s1, %last) {keepdims=1}\n%dead = Equal(%most, %low)\n%s2 = Where(%dead, %zero, %s1)\n"
      "%p0 = Softmax(%s2)\n%p = Where(%dead, %zero, %p0)";
  EXPECT_TRUE(is_found("%s1 = Where(%f, %s0, %low)\n" + dead));
  EXPECT_TRUE(is_found("%s1 = Where(%f, %s0, %least)\n" + dead)) << "none is";
}

}  // namespace
}  // namespace backpass
