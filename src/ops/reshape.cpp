// Reshape: the same elements under other extents.
#include <algorithm>

#include "gradient/rule.hpp"
#include "ops/movement.hpp"
#include "ops/op.hpp"

namespace backpass {
namespace {

/// product(total) / product(parts), with extents that stand in both cancelled first: keeps expressions short, and makes
/// [0,3] -> [0,-1] well defined.
Dim quotient(const InferContext& c, Shape total, Shape parts) {
  for (auto part = parts.begin(); part != parts.end();) {
    auto match = std::find(total.begin(), total.end(), *part);
    if (match == total.end()) {
      ++part;
    } else {
      total.erase(match);
      part = parts.erase(part);
    }
  }
  Dim numerator = product(total);
  Dim denominator = product(parts);
  c.require(!denominator.is(0), "shape: the extent -1 cannot be told when another is 0: got ", shown(parts),
            " for the rest; give the extent");
  if (numerator.is_known() && denominator.is_known()) {
    c.require(numerator.value() % denominator.value() == 0, "shape: cannot fill in -1: ", shown(numerator),
              " elements are not a multiple of ", shown(denominator));
  }
  return floor_div(numerator, denominator);
}

/// The requested extents with 0 (copy from the input) resolved; the position of -1 or `npos` in `unknown`.
Shape requested_shape(const InferContext& c, const std::vector<Dim>& target, std::size_t& unknown) {
  const bool allow_zero = c.node.attr_int("allowzero", 0) != 0;
  const Shape& in = c.shape(0);
  Shape out = target;
  unknown = out.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].is_known()) continue;
    c.require(out[i].value() >= -1, "shape: got ", shown(out[i]), " at position ", i, ", expected -1 or more");
    if (out[i].is(-1)) {
      c.require(unknown == out.size(), "shape: got -1 at positions ", unknown, " and ", i, ", expected at most one");
      unknown = i;
    } else if (out[i].is(0) && !allow_zero) {
      c.require(i < in.size(), "shape: got 0 (copy) at position ", i, " but the input ", shown(in), " has only ",
                in.size(), " axes");
      out[i] = in[i];
    }
  }
  return out;
}

/// The shape is computed at run time: its length still tells the rank.
void infer_rank_only(InferContext& c) {
  const Shape& shape = c.shape(1);
  if (shape.size() != 1 || !shape[0].is_known()) throw NotKnownYet{};
  Shape out;
  for (std::int64_t i = 0; i < shape[0].value(); ++i) out.push_back(c.data_dependent(concat("reshape", i)));
  c.set_shape(0, std::move(out));
}

/// What has to be looked up in an input of unknown shape only run time knows.
Shape shape_without_input(InferContext& c, std::vector<Dim> target) {
  const bool allow_zero = c.node.attr_int("allowzero", 0) != 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i].is(-1) || (target[i].is(0) && !allow_zero)) target[i] = c.data_dependent(concat("reshape", i));
  }
  return target;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == DType::int64, "shape: got ", name_of(c.dtype(1)), ", expected int64");
  auto target = movement::index_list(c, 1, "shape");
  if (!target) return infer_rank_only(c);
  if (!c.knows_shape(0)) return c.set_shape(0, shape_without_input(c, *std::move(target)));
  const Shape& in = c.shape(0);
  std::size_t unknown = 0;
  Shape out = requested_shape(c, *target, unknown);
  if (unknown < out.size()) {
    Shape rest = out;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(unknown));
    out[unknown] = quotient(c, in, std::move(rest));
  } else if (is_known(in) && is_known(out)) {
    c.require(product(in) == product(out), "shape: got ", shown(out), " of ", shown(product(out)),
              " elements, expected one of ", shown(product(in)), " elements as ", shown(in), " has");
  }
  bool small = out.size() <= 1;
  c.set_shape(0, std::move(out));
  if (auto values = c.maybe_ints(0); values && small) movement::set_ints(c, 0, *std::move(values));
}

void same_elements_gradient(GradientContext& g) { g.set(0, g.reshape_like(g.dy(), g.x())); }

const Register reshape{{.name = "Reshape",
                        .since = 25,
                        .doc = "The same elements under other extents; one may be -1, 0 copies the input's.",
                        .inputs = {2, 2},
                        .types = movement::any_type,
                        .infer = infer,
                        .prepare = movement::prepare_copy,
                        .gradient = same_elements_gradient,
                        .is_view = true}};

}  // namespace
}  // namespace backpass
