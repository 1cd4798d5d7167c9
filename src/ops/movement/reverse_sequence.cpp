// ReverseSequence: the first elements of every sequence of a batch backwards.
#include <algorithm>

#include "gradient/positions.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  std::int64_t batch = c.node.attr_int("batch_axis", 1);
  std::int64_t time = c.node.attr_int("time_axis", 0);
  c.require((batch == 0 && time == 1) || (batch == 1 && time == 0), "batch_axis and time_axis: got ", batch, " and ",
            time, ", expected 0 and 1 or 1 and 0");
  c.require(c.dtype(1) == DType::int64, "sequence_lens: got ", name_of(c.dtype(1)), ", expected int64");
  const Shape& in = c.shape(0);
  c.require(in.size() >= 2, "input: got rank ", in.size(), ", expected 2 or more");
  c.set_shape(0, in);
  c.require(c.rank(1) == 1, "sequence_lens: got rank ", c.rank(1), ", expected 1");
  c.unify(in[static_cast<std::size_t>(batch)], c.shape(1)[0], "batch size and number of sequence_lens");
}

Kernel prepare(PrepareContext& c) {
  const Dims& in = c.in(0).dims;
  DType dtype = c.in(0).dtype;
  bool batch_first = c.node.attr_int("batch_axis", 1) == 0;
  std::int64_t columns = in[1];
  std::int64_t inner = product(in, 2, in.size());
  std::int64_t time = batch_first ? in[1] : in[0];
  std::int64_t batch = batch_first ? in[0] : in[1];
  return [=, label = c.node.label()](const KernelArgs& args) {
    const auto* lengths = args.in<std::int64_t>(1);
    for (std::int64_t b = 0; b < batch; ++b) {
      if (lengths[b] < 0 || lengths[b] > time) {
        fail(label, " sequence_lens: got ", lengths[b], " at position ", b, ", expected one in [0, ", time, "]");
      }
    }
    visit_storage(dtype, [&]<class T>() {
      parallel_for(batch * time, grain_for(inner), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          std::int64_t b = batch_first ? row / columns : row % columns;
          std::int64_t t = batch_first ? row % columns : row / columns;
          std::int64_t source = t < lengths[b] ? lengths[b] - 1 - t : t;
          std::int64_t from = batch_first ? b * columns + source : source * columns + b;
          std::copy_n(args.in<T>(0) + from * inner, inner, args.out<T>(0) + row * inner);
        }
      });
    });
  };
}

void gradient(GradientContext& g) { g.set(0, g.op("ReverseSequence", {g.dy(), g.x(1)}, attributes_of(g.node))); }

const Register reverse_sequence{{.name = "ReverseSequence",
                                 .since = 28,
                                 .doc = "The first sequence_lens[i] steps of sequence i in reverse.",
                                 .inputs = {2, 2},
                                 .types = types::movable,
                                 .infer = infer,
                                 .prepare = prepare,
                                 .gradient = gradient}};

}  // namespace
}  // namespace backpass
