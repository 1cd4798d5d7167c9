// Losses that are written out, at random: whatever skip_ignored_labels makes of them, results and gradients stay.
#include <gtest/gtest.h>

#include "gradient_testing.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kClasses = 5;
constexpr std::int64_t kIgnored = -1;

/// Something made of the scores: [rows...] or [rows..., classes or 1].
struct Made {
  Value* value;
  bool has_last;
};

class Losses : public GradientFixture {
 public:
  explicit Losses(unsigned seed) {
    generator.seed(seed);
    rows_ = chance(2) ? Dims{2, 4} : Dims{6};
    Dims wide = rows_;
    wide.push_back(kClasses);
    x_ = input(wide);
    labels_ = add_labels();
    ignored_ = b.op("Equal", {labels_, b.scalar(kIgnored, labels_)});
    known_ = b.op("Where", {ignored_, b.scalar(0, labels_), labels_});
    Dims single = rows_;
    single.push_back(1);
    each_ = input(rows_);
    each_last_ = input(single);
    made_.push_back({b.op("LogSoftmax", {x_}, {{"axis", std::int64_t{-1}}}), true});
    const int steps = pick(4, 14);
    for (int i = 0; i < steps; ++i) step();
    finish();
  }

  /// Of all results together, by the scores.
  Tensor gradient() {
    differentiate({x_});
    return run().back();
  }

 private:
  bool chance(int n) { return pick(0, n - 1) == 0; }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(generator); }

  Value* add_labels() {
    const DType dtype = chance(2) ? DType::int32 : DType::int64;
    Value* v = graph.add_value("labels", Type::tensor(dtype, to_shape(rows_)));
    graph.inputs.push_back(v);
    Tensor t(dtype, rows_);
    const int density = pick(0, 4);
    for (std::int64_t i = 0; i < t.size(); ++i) {
      const std::int64_t label = pick(0, 3) < density ? pick(0, kClasses - 1) : kIgnored;
      if (dtype == DType::int32) {
        t.as<std::int32_t>()[i] = static_cast<std::int32_t>(label);
      } else {
        t.as<std::int64_t>()[i] = label;
      }
    }
    feeds.emplace_back(std::move(t));
    return v;
  }

  const Made& any() { return made_[static_cast<std::size_t>(pick(0, static_cast<int>(made_.size()) - 1))]; }
  Value* last(Value* v) { return b.op("Unsqueeze", {v, b.ints({-1})}); }

  void step() {
    const Made from = any();
    Value* v = from.value;
    switch (pick(0, 9)) {
      case 0:
        return add(b.op("Neg", {v}), from.has_last);
      case 1:
        return add(b.op("Mul", {v, b.scalar(0.5, v)}), from.has_last);
      case 2:
        return add(b.op(chance(2) ? "Sigmoid" : "Tanh", {v}), from.has_last);
      case 3:
        return add(b.op("Mul", {v, from.has_last ? each_last_ : each_}), from.has_last);
      case 4:
        return join(from);
      case 5:
        if (from.has_last) add(b.op("ReduceSum", {v, b.ints({-1})}, {{"keepdims", std::int64_t{0}}}), false);
        return;
      case 6:
        return gather(from);
      default:
        return silence(from);
    }
  }

  void add(Value* v, bool has_last) { made_.push_back({v, has_last}); }

  void join(const Made& from) {
    const Made other = any();
    if (other.has_last == from.has_last) add(b.op(chance(2) ? "Add" : "Sub", {from.value, other.value}), from.has_last);
  }

  void gather(const Made& from) {
    if (!from.has_last || !from.value->type.shape->back().is(kClasses)) return;
    const auto axis = static_cast<std::int64_t>(rows_.size());
    Value* places = b.op("Cast", {last(known_)}, {{"to", static_cast<std::int64_t>(DType::int64)}});
    Value* picked = b.op("GatherElements", {from.value, places}, {{"axis", axis}});
    if (chance(2)) return add(picked, true);
    add(b.op("Squeeze", {picked, b.ints({-1})}), false);
  }

  void silence(const Made& from) {
    Value* condition = from.has_last ? last(ignored_) : ignored_;
    Value* zero = b.scalar(0, from.value);
    if (chance(2)) return add(b.op("Where", {condition, zero, from.value}), from.has_last);
    add(b.op("Where", {b.op("Not", {condition}), from.value, zero}), from.has_last);
  }

  /// What was made last, reduced or as it is.
  void finish() {
    const int count = pick(1, 2);
    for (int i = 0; i < count; ++i) {
      Value* v = made_[made_.size() - 1 - static_cast<std::size_t>(i) % made_.size()].value;
      const int how = pick(0, 3);
      if (how > 0) v = b.op(how == 1 ? "ReduceMean" : "ReduceSum", {v, nullptr}, {{"keepdims", std::int64_t{0}}});
      if (!graph.is_output(v)) output(v);
    }
    graph.remove_dead_nodes();
  }

  Dims rows_;
  Value* x_;
  Value* labels_;
  Value* ignored_;
  Value* known_;
  Value* each_;
  Value* each_last_;
  std::vector<Made> made_;
};

TEST(SkipIgnoredLabels, LeavesResultsOfWhateverIsWrittenOut) {
  int skipped = 0;
  int refused = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    Losses losses(seed);
    losses.apply(skip_ignored_labels);
    Losses whole(seed);
    PassFixture::expect_near(whole.gradient(), losses.gradient(), 1e-12);
    if (testing::Test::HasFailure()) return;
    for (const Report& report : losses.reports) ++(report.bytes_saved == "0" ? refused : skipped);
  }
  EXPECT_GT(skipped, 150);
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace backpass
