// Squeeze and Unsqueeze: axes of extent 1 removed and added.
#include <algorithm>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

std::vector<bool> marked_axes(const InferContext& c, const std::vector<std::int64_t>& axes, std::size_t rank) {
  std::vector<bool> marked(rank, false);
  for (std::int64_t a : axes) {
    std::size_t axis = c.axis(a, rank);
    c.require(!marked[axis], "axes: got axis ", a, " twice, expected each at most once");
    marked[axis] = true;
  }
  return marked;
}

void keep_ints(InferContext& c, std::size_t rank) {
  if (rank > 1) return;
  if (auto values = c.maybe_ints(0)) movement::set_ints(c, 0, *std::move(values));
}

void infer_squeeze(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  std::vector<bool> gone(in.size(), false);
  if (c.has_input(1)) {
    gone = marked_axes(c, c.known_ints(1), in.size());
  } else {
    if (!is_known(in)) throw NotKnownYet{};  // a symbol could be 1
    for (std::size_t i = 0; i < in.size(); ++i) gone[i] = in[i].is(1);
  }
  Shape out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!gone[i]) {
      out.push_back(in[i]);
    } else {
      c.require(in[i].is(1) || !in[i].is_known(), "axes: axis ", i, " of ", shown(in), " has extent ", shown(in[i]),
                ", expected 1");
    }
  }
  keep_ints(c, out.size());
  c.set_shape(0, std::move(out));
}

void infer_unsqueeze(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  std::vector<std::int64_t> axes = c.known_ints(1);
  std::vector<bool> added = marked_axes(c, axes, in.size() + axes.size());
  Shape out;
  std::size_t next = 0;
  for (bool is_new : added) out.push_back(is_new ? Dim(1) : in[next++]);
  keep_ints(c, out.size());
  c.set_shape(0, std::move(out));
}

void same_elements_gradient(GradientContext& g) { g.set(0, g.reshape_like(g.dy(), g.x())); }

const Register squeeze{{.name = "Squeeze",
                        .since = 25,
                        .doc = "Removes axes of extent 1: those listed, or all.",
                        .inputs = {1, 2},
                        .types = movement::any_type,
                        .infer = infer_squeeze,
                        .prepare = movement::prepare_copy,
                        .gradient = same_elements_gradient,
                        .is_view = true}};

const Register unsqueeze{{.name = "Unsqueeze",
                          .since = 25,
                          .doc = "Adds axes of extent 1 at the listed positions of the result.",
                          .inputs = {2, 2},
                          .types = movement::any_type,
                          .infer = infer_unsqueeze,
                          .prepare = movement::prepare_copy,
                          .gradient = same_elements_gradient,
                          .is_view = true}};

void lift_13(Builder& b, Node& node) { movement::ints_attribute_to_input(b, node, "axes", 1); }
const RegisterAdapter squeeze_13{{.op = "Squeeze", .below = 13, .lift = lift_13}};
const RegisterAdapter unsqueeze_13{{.op = "Unsqueeze", .below = 13, .lift = lift_13}};

}  // namespace
}  // namespace backpass
