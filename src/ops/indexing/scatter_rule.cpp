// Gradients of ScatterElements and ScatterND. Several updates may meet at one element; shares are those of torch's
// scatter_reduce: a product's others, equal parts among the largest or smallest. Without a reduction every update that
// names an element gets its whole gradient, though only one was written: indices must not repeat then.
#include "ops/indexing/scatter_rule.hpp"

#include "gradient/rule.hpp"

namespace backpass {
namespace {

/// Reads and writes at the indices of the node.
class Indexed {
 public:
  Indexed(GradientContext& g, const char* gather, const char* scatter, AttributeList attributes)
      : g_(g), gather_(gather), scatter_(scatter), attributes_(std::move(attributes)) {}

  Value* read(Value* data) const { return g_.op(gather_, {data, g_.x(1)}, attributes_); }

  Value* write(Value* data, Value* updates, const char* reduction = "none") const {
    AttributeList attributes = attributes_;
    attributes.emplace_back("reduction", std::string(reduction));
    return g_.op(scatter_, {data, g_.x(1), updates}, attributes);
  }

 private:
  GradientContext& g_;
  const char* gather_;
  const char* scatter_;
  AttributeList attributes_;
};

void product_gradient(GradientContext& g, const Indexed& at) {
  Value* updates = g.x(2);
  Value* ones = g.op("Expand", {g.one(g.x()), g.shape_of(g.x())});
  g.set(0, g.mul(g.dy(), at.write(ones, updates, "mul")));
  // A factor of zero hides the others: they are multiplied without the zeros, which are counted.
  Value* zero = g.zero(updates);
  Value* is_zero = g.equal(updates, zero);
  Value* factors = g.where(is_zero, g.one(updates), updates);
  Value* others = at.read(g.mul(g.dy(), at.write(g.x(), factors, "mul")));
  Value* zeros = at.read(at.write(g.zeros_like(g.x()), g.cast_like(is_zero, updates), "add"));
  Value* of_zero = g.where(g.equal(zeros, g.one(updates)), others, zero);
  Value* of_rest = g.where(g.equal(zeros, zero), g.div(others, factors), zero);
  g.set(2, g.where(is_zero, of_zero, of_rest));
}

void extreme_gradient(GradientContext& g, const Indexed& at) {
  Value* own = g.equal(g.x(), g.y());
  Value* theirs = g.equal(g.x(2), at.read(g.y()));
  Value* zero = g.zero(g.x());
  Value* winners = at.write(g.cast_like(own, g.x()), g.cast_like(theirs, g.x()), "add");
  // Elements that are NaN have no winner: nothing flows back from there.
  Value* share = g.div(g.dy(), g.where(g.equal(winners, zero), g.one(g.x()), winners));
  g.set(0, g.where(own, share, zero));
  g.set(2, g.where(theirs, at.read(share), zero));
}

void scatter_gradient(GradientContext& g, const Indexed& at) {
  const std::string reduction = g.node.attr_string("reduction", "none");
  if (reduction == "mul") return product_gradient(g, at);
  if (reduction == "max" || reduction == "min") return extreme_gradient(g, at);
  g.set(0, reduction == "add" ? g.dy() : at.write(g.dy(), g.zeros_like(g.x(2))));
  g.set(2, at.read(g.dy()));
}

}  // namespace

void scatter_elements_gradient(GradientContext& g) {
  scatter_gradient(g, {g, "GatherElements", "ScatterElements", {{"axis", g.node.attr_int("axis", 0)}}});
}

void scatter_nd_gradient(GradientContext& g) { scatter_gradient(g, {g, "GatherND", "ScatterND", {}}); }

}  // namespace backpass
