// Small operators of ORT training graphs that gather gradients and order work: accumulators, Group, PassThrough.
#include <cstring>

#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer_pass_through(InferContext& c) {
  c.require(c.node.outputs.size() <= c.input_count(), "got ", c.node.outputs.size(), " outputs for ", c.input_count(),
            " inputs");
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) {
    c.dtype(i);
    c.set_type(i, c.type(i));
    if (auto values = c.maybe_ints(i)) movement::set_ints(c, i, *std::move(values));
  }
}

Kernel prepare_pass_through(PrepareContext& c) {
  std::vector<TensorInfo> tensors = c.outputs;
  return [tensors](const KernelArgs& args) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].present) continue;
      kernels::copy_elements(tensors[i].dtype, args.inputs[i], args.outputs[i], tensors[i].size());
    }
  };
}

void infer_flag(InferContext& c) { c.set(0, DType::boolean, {1}); }

Kernel prepare_flag(PrepareContext&) {
  return [](const KernelArgs& args) { *args.out<bool>(0) = true; };
}

Kernel prepare_zero(PrepareContext& c) {
  std::size_t bytes = byte_size(c.out(0).dtype, c.out(0).size());
  return [bytes](const KernelArgs& args) { std::memset(args.outputs[0], 0, bytes); };
}

void check_sum(const InferContext& c) {
  if (c.has_input(2)) {
    c.require(c.dtype(2) == DType::boolean, "flag: got ", name_of(c.dtype(2)), ", expected bool");
  }
  c.require(types::floats.has(c.dtype(1)), "value: got ", name_of(c.dtype(1)), ", expected a floating point type");
  const Shape& sum = c.shape(0);
  const Shape& value = c.shape(1);
  bool fits = sum.size() == value.size();
  for (std::size_t i = 0; fits && i < sum.size(); ++i) {
    fits = !sum[i].is_known() || !value[i].is_known() || sum[i] == value[i];
  }
  c.require(fits, "value: got ", shown(value), ", expected ", shown(sum), ", the shape of the sum");
}

void infer_accumulator(InferContext& c) {
  rules::same_as_input(c);
  check_sum(c);
}

void infer_accumulator_v2(InferContext& c) {
  infer_flag(c);
  c.set_type(1, c.type(0));
  check_sum(c);
}

enum class Update : std::uint8_t { keep, add, overwrite };

template <class T, class V>
void update_sum(Update update, std::int64_t count, const T* sum, const V* value, T* out) {
  parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      T v = static_cast<T>(value[i]);
      out[i] = update == Update::keep ? sum[i] : (update == Update::add ? sum[i] + v : v);
    }
  });
}

/// What a true, a false and an absent flag in input 2 mean.
Kernel prepare_sum(const PrepareContext& c, std::size_t output, Update when_set, Update when_clear,
                   Update when_absent) {
  DType dtype = c.in(0).dtype;
  DType value_type = c.in(1).dtype;
  std::int64_t count = c.in(0).size();
  c.require(c.in(1).size() == count, "value: got ", shown(c.in(1).dims), ", expected ", shown(c.in(0).dims));
  bool flagged = c.has_input(2) && c.in(2).size() > 0;
  return [=](const KernelArgs& args) {
    Update update = !flagged ? when_absent : (*args.in<bool>(2) ? when_set : when_clear);
    visit_real(dtype, [&]<class T>() {
      visit_real(value_type,
                 [&]<class V>() { update_sum(update, count, args.in<T>(0), args.in<V>(1), args.out<T>(output)); });
    });
  };
}

Kernel prepare_accumulator(PrepareContext& c) { return prepare_sum(c, 0, Update::add, Update::keep, Update::add); }

Kernel prepare_accumulator_v2(PrepareContext& c) {
  Kernel sum;
  if (c.has_output(1)) sum = prepare_sum(c, 1, Update::overwrite, Update::add, Update::add);
  bool flag = c.has_output(0);
  return [=](const KernelArgs& args) {
    if (sum) sum(args);
    if (flag) *args.out<bool>(0) = true;
  };
}

const Register pass_through{{.name = "PassThrough",
                             .domain = "com.microsoft",
                             .doc = "Its inputs, once all of them are there.",
                             .inputs = {1, -1},
                             .outputs = {1, -1},
                             .types = {},
                             .infer = infer_pass_through,
                             .prepare = prepare_pass_through}};

const Register group{{.name = "Group",
                      .domain = "com.microsoft",
                      .doc = "True, once all inputs are there.",
                      .inputs = {1, -1},
                      .types = {},
                      .infer = infer_flag,
                      .prepare = prepare_flag}};

const Register zero_gradient{{.name = "ZeroGradient",
                              .domain = "com.microsoft",
                              .doc = "Zeros of the shape of input 0; input 1 only orders it.",
                              .inputs = {2, 2},
                              .types = types::floats,
                              .infer = rules::same_as_input,
                              .prepare = prepare_zero,
                              .in_place_input = 0}};

const Register in_place_accumulator{{.name = "InPlaceAccumulator",
                                     .domain = "com.microsoft",
                                     .doc = "The sum plus a value, or the sum alone when the signal is false.",
                                     .inputs = {2, 3},
                                     .types = types::floats,
                                     .infer = infer_accumulator,
                                     .prepare = prepare_accumulator,
                                     .half_through_float = true,
                                     .in_place_input = 0}};

const Register in_place_accumulator_v2{{.name = "InPlaceAccumulatorV2",
                                        .domain = "com.microsoft",
                                        .doc = "True, and the buffer with a value added or put in its place. The new "
                                               "buffer is output 1; input 0 is not changed.",
                                        .inputs = {2, 3},
                                        .outputs = {1, 2},
                                        .types = types::floats,
                                        .infer = infer_accumulator_v2,
                                        .prepare = prepare_accumulator_v2,
                                        .half_through_float = true}};

}  // namespace
}  // namespace backpass
