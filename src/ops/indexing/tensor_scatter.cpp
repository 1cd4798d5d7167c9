// TensorScatter: new steps written into a cache of fixed length, at a position per batch entry.
#include <algorithm>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

bool is_circular(const Node& node) {
  std::string mode = node.attr_string("mode", "linear");
  if (mode != "linear" && mode != "circular")
    fail(node.label(), " mode: got ", printable(mode), ", expected linear or circular");
  return mode == "circular";
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  is_circular(c.node);
  movement::require_same_dtype(c, 0, 1);
  const Shape& cache = c.shape(0);
  c.set_shape(0, cache);
  std::size_t axis = c.axis(c.node.attr_int("axis", -2), cache.size());
  c.require(axis != 0, "axis: got 0, the batch axis; expected another");
  const Shape& update = c.shape(1);
  c.require(update.size() == cache.size(), "update: got rank ", update.size(), ", expected ", cache.size());
  for (std::size_t i = 0; i < cache.size(); ++i) {
    if (i != axis) c.unify(cache[i], update[i], concat("extent of axis ", i, " of the cache and the update"));
  }
  c.require(!cache[axis].is_known() || !update[axis].is_known() || update[axis].value() <= cache[axis].value(),
            "update: got ", shown(update[axis]), " steps, expected no more than the cache holds, ", shown(cache[axis]));
  if (!c.has_input(2)) return;
  c.require(c.dtype(2) == DType::int64, "write_indices: got ", name_of(c.dtype(2)), ", expected int64");
  c.require(c.rank(2) == 1, "write_indices: got rank ", c.rank(2), ", expected 1");
  c.unify(cache[0], c.shape(2)[0], "batch size and number of write_indices");
}

struct Layout {
  std::int64_t rows;            ///< everything before the sequence axis
  std::int64_t rows_per_entry;  ///< of one batch entry
  std::int64_t length, steps, inner;
  bool circular;
};

void check_index(const std::string& label, const Layout& l, std::int64_t index, std::int64_t entry) {
  bool fits = index >= 0 && (l.circular || index <= l.length - l.steps);
  if (fits) return;
  fail(label, " write_indices: got ", index, " for batch entry ", entry, ", expected one in [0, ", l.length - l.steps,
       "] to write ", l.steps, " steps into ", l.length);
}

template <class T>
void write(const Layout& l, const std::int64_t* indices, const T* update, T* cache) {
  parallel_for(l.rows, grain_for(l.steps * l.inner), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t at = indices == nullptr ? 0 : indices[row / l.rows_per_entry];
      for (std::int64_t s = 0; s < l.steps; ++s) {
        std::int64_t to = l.circular ? (at % l.length + s) % l.length : at + s;
        std::copy_n(update + (row * l.steps + s) * l.inner, l.inner, cache + (row * l.length + to) * l.inner);
      }
    }
  });
}

Kernel prepare_bytes(PrepareContext& c) {
  const Dims& cache = c.in(0).dims;
  const Dims& update = c.in(1).dims;
  DType dtype = c.in(0).dtype;
  std::size_t axis = c.axis(c.node.attr_int("axis", -2), cache.size());
  std::int64_t entries = cache[0];
  Layout l{product(cache, 0, axis),
           product(cache, 1, axis),
           cache[axis],
           update[axis],
           product(cache, axis + 1, cache.size()),
           is_circular(c.node)};
  std::int64_t count = c.in(0).size();
  bool indexed = c.has_input(2);
  return [=, label = c.node.label()](const KernelArgs& args) {
    kernels::copy_elements(dtype, args.inputs[0], args.outputs[0], count);
    const std::int64_t* indices = indexed ? args.in<std::int64_t>(2) : nullptr;
    for (std::int64_t b = 0; indexed && b < entries; ++b) check_index(label, l, indices[b], b);
    if (l.length == 0) return;
    visit_storage(dtype, [&]<class T>() { write(l, indices, args.in<T>(1), args.out<T>(0)); });
  };
}

Kernel prepare(PrepareContext& c) { return movement::through_bytes(c, prepare_bytes); }

/// Positions along the sequence axis that the update was written to, of the update's shape.
Value* written(GradientContext& g) {
  const std::int64_t rank = g.rank(g.x());
  std::int64_t axis = g.node.attr_int("axis", -2);
  axis += axis < 0 ? rank : 0;
  std::vector<std::int64_t> along(static_cast<std::size_t>(rank), 1);
  along[static_cast<std::size_t>(axis)] = -1;
  Value* steps = g.reshape(count_up(g, g.extent(g.x(1), axis)), along);
  if (g.has_input(2)) {
    std::vector<std::int64_t> per_entry(static_cast<std::size_t>(rank), 1);
    per_entry[0] = -1;
    steps = g.add(steps, g.reshape(g.x(2), per_entry));
  }
  if (is_circular(g.node)) steps = g.op("Mod", {steps, g.extent(g.x(), axis)});
  return g.op("Expand", {steps, g.shape_of(g.x(1))});
}

void gradient(GradientContext& g) {
  std::vector<Value*> inputs = g.node.inputs;
  inputs[0] = g.dy();
  inputs[1] = g.zeros_like(g.x(1));
  g.set(0, g.op("TensorScatter", std::move(inputs), attributes_of(g.node)));
  if (g.wants(1)) {
    g.set(1, g.op("GatherElements", {g.dy(), written(g)}, {{"axis", g.node.attr_int("axis", -2)}}));
  }
}

const Register tensor_scatter{{.name = "TensorScatter",
                               .since = 24,
                               .doc = "A cache with new steps written at a position per batch entry; may wrap around.",
                               .inputs = {2, 3},
                               .types = movement::any_type,
                               .infer = infer,
                               .prepare = prepare,
                               .gradient = gradient}};

}  // namespace
}  // namespace backpass
