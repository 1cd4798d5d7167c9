// RowDropout: what Dropout makes of some rows of a tensor, where the others were never computed.
#include <algorithm>
#include <limits>

#include "graph/op.hpp"
#include "ops/random/dropout.hpp"
#include "ops/random/dropout_rule.hpp"
#include "ops/read_scalar.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::size_t kPlaces = 3;

void infer(InferContext& c) {
  c.require(c.dtype(kPlaces) == DType::int64, "places: got ", name_of(c.dtype(kPlaces)), ", expected int64");
  dropout::infer(c);
}

/// The rows of x, and where each is in the whole tensor.
struct Rows {
  std::int64_t count = 0;
  std::int64_t inner = 0;

  explicit Rows(const PrepareContext& c) : count(c.in(kPlaces).size()) {
    const Dims& x = c.in(0).dims;
    std::size_t axis = 0;
    std::int64_t leading = 1;
    while (leading != count && axis < x.size()) leading *= x[axis++];
    c.require(leading == count, "places: got ", count, ", expected one for each row of ", shown(x));
    inner = count == 0 ? 0 : c.in(0).size() / count;
  }

  void check(const std::int64_t* places, const std::string& where) const {
    const std::int64_t most = std::numeric_limits<std::int64_t>::max() / std::max<std::int64_t>(inner, 1) - 1;
    for (std::int64_t r = 0; r < count; ++r) {
      if (places[r] < 0 || places[r] > most)
        fail(where, " places: got ", places[r], " at position ", r, ", expected one in [0, ", most, "]");
    }
  }

  /// Calls f(i, first, n) for stretches of [begin, end) of x, elements of which are neighbours in the whole tensor from
  /// `first` on.
  template <class F>
  void each_stretch(const std::int64_t* places, std::int64_t begin, std::int64_t end, const F& f) const {
    while (begin < end) {
      std::int64_t row = begin / inner;
      const std::int64_t first = places[row] * inner + begin % inner;
      while (++row < count && row * inner < end && places[row] == places[row - 1] + 1) {
      }
      const std::int64_t stop = std::min(end, row * inner);
      f(begin, first, stop - begin);
      begin = stop;
    }
  }
};

Kernel prepare(PrepareContext& c) {
  const DType dtype = c.in(0).dtype;
  const std::int64_t n = c.in(0).size();
  const ScalarInput ratio(c, 1, dropout::kDefaultRatio);
  const ScalarInput training(c, 2, 0);
  const Rows rows(c);
  const RandomStream stream(dropout::seed_of(c.node), c.node.attr_string("stream", dropout::stream_name(c.node)));
  const bool wants_mask = c.has_output(1);
  return [=, where = c.node.label()](const KernelArgs& a) {
    bool* mask = wants_mask ? a.out<bool>(1) : nullptr;
    const auto* places = a.in<std::int64_t>(kPlaces);
    rows.check(places, where);
    const double r = training.read(a) == 0 ? 0 : dropout::checked_ratio(ratio.read(a), where);
    if (r == 0) return dropout::keep_everything(a, byte_size(dtype, n), mask, n);
    const Philox random = stream.next();
    visit_float(dtype, [&]<class T>() {
      parallel_for(n, dropout::kGrain, [&](std::int64_t begin, std::int64_t end) {
        rows.each_stretch(places, begin, end, [&](std::int64_t i, std::int64_t first, std::int64_t count) {
          dropout::drop(random, r, first, count, a.in<T>(0) + i, a.out<T>(0) + i, mask == nullptr ? nullptr : mask + i);
        });
      });
    });
  };
}

const Register kRowDropout({.name = "RowDropout",
                            .domain = "backpass",
                            .doc = "what Dropout named `stream` makes of the rows at `places` of a tensor",
                            .inputs = {1, 4},
                            .outputs = {1, 2},
                            .types = types::floats,
                            .infer = infer,
                            .prepare = prepare,
                            .gradient = dropout::gradient,
                            .fused_gradient = dropout::fused_gradient,
                            .in_place_input = 0,
                            .is_one_pass = true,
                            .is_random = true});

}  // namespace
}  // namespace backpass
