// Reshape: the same elements under other extents.
#include <algorithm>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

/// What the model says before any extent is a number: whether the result has the input's extent at position i. The same
/// answer for symbols and for numbers, so that both resolve -1 alike.
bool surely_copies(const InferContext& c, std::size_t i) {
  const Value& input = *c.node.inputs[0];
  const Value& target = *c.node.inputs[1];
  if (!input.type.shape || i >= input.type.shape->size()) return false;
  auto is_copied = [&](const Dim& wanted) {
    return wanted == (*input.type.shape)[i] || (wanted.is(0) && c.node.attr_int("allowzero", 0) == 0);
  };
  if (target.constant) return is_copied(target.constant->to_ints().at(i));
  return target.ints && is_copied(target.ints->at(i));
}

/// The extent that -1 stands for. Extents that are copied need not be divided by: [0,3] to [0,-1] is well defined.
Dim remaining(const InferContext& c, const Shape& out, std::size_t unknown) {
  Dim total = 1;
  Dim rest = 1;
  const Shape& in = c.shape(0);
  for (std::size_t i = 0; i < std::max(in.size(), out.size()); ++i) {
    if (i != unknown && i < out.size() && surely_copies(c, i)) continue;
    if (i < in.size()) total = total * in[i];
    if (i < out.size() && i != unknown) rest = rest * out[i];
  }
  c.require(!rest.is(0), "shape: the extent -1 cannot be told when another is 0: got ", shown(out),
            "; give the extent");
  if (total.is_known() && rest.is_known()) {
    c.require(total.value() % rest.value() == 0, "shape: cannot fill in -1: ", shown(total),
              " elements are not a multiple of ", shown(rest));
  }
  return floor_div(total, rest);
}

/// Whether the input surely has no elements where the extent at position i of the target is 0.
bool empties_the_input(const Shape& in, const Shape& target, std::size_t i) {
  auto elements = unless_it_overflows([&] { return product(in); });
  auto wanted = unless_it_overflows([&] { return product(target); });
  return elements && (elements == wanted || unless_zero(target[i], *elements) == target[i]);
}

/// Whether a computed extent that turns out 0 (copy from the input) at position i can go unnoticed: where the input has
/// elements all the same, with -1 elsewhere, or beside another 0. Else the number of elements would not fit.
bool may_copy(const Shape& in, const Shape& target, std::size_t i) {
  if (i >= in.size() || surely_at_least(target[i], 1)) return false;
  if (!empties_the_input(in, target, i)) return true;
  for (std::size_t k = 0; k < target.size(); ++k) {
    if (target[k].is(-1)) return true;
    if (k != i && k < in.size() && !surely_at_least(target[k], 1) && !surely_at_least(in[k], 1)) return true;
  }
  return false;
}

/// The requested extents with 0 (copy from the input) resolved; the position of -1 or `npos` in `unknown`.
Shape requested_shape(InferContext& c, const std::vector<Dim>& target, std::size_t& unknown) {
  const bool allow_zero = c.node.attr_int("allowzero", 0) != 0;
  const Shape& in = c.shape(0);
  Shape out = target;
  unknown = out.size();
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].is_known()) {
      if (!allow_zero && may_copy(in, target, i)) out[i] = unless_zero(out[i], in[i]);
      if (!surely_at_least(target[i], 0)) out[i] = c.data_dependent(concat("reshape", i));  // could be -1
      continue;
    }
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
    if (!surely_at_least(target[i], allow_zero ? 0 : 1)) target[i] = c.data_dependent(concat("reshape", i));
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
    out[unknown] = remaining(c, out, unknown);
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
