// SequenceConstruct, SequenceEmpty, SequenceInsert, SequenceErase, SequenceAt,
// SequenceLength.
#include <cstddef>
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/control_flow/subgraph.hpp"
#include "ops/sequences/sequence_rules.hpp"

namespace backpass {
namespace {

const Type& element_type(InferContext& c, std::size_t i) {
  const Type& type = c.type(i);
  if (type.kind == Type::Kind::unknown) throw NotKnownYet{};
  c.require(type.kind == Type::Kind::sequence, "input ", i, ": got ", shown(type), ", expected a sequence");
  return *type.element;
}

// A position given as tensor, in [-limit, limit) and made non-negative; `limit`
// counts one past the end where allowed.
std::size_t position(const ComputeContext& c, std::size_t input, std::size_t length, bool may_append) {
  const Tensor& tensor = c.tensor(input);
  c.require(tensor.size() == 1, "position: got ", tensor.size(), " elements, expected 1");
  const std::int64_t given = tensor.to_ints()[0];
  const auto count = static_cast<std::int64_t>(length);
  const std::int64_t index = given < 0 ? given + count : given;
  const std::int64_t end = may_append ? count + 1 : count;
  c.require(index >= 0 && index < end, "position: got ", given, ", expected [", -count, ", ", end,
            ") for a sequence of ", count);
  return static_cast<std::size_t>(index);
}

void infer_construct(InferContext& c) {
  Type element = c.type(0);
  for (std::size_t i = 1; i < c.input_count(); ++i) element = merged(c, element, c.type(i), i);
  c.set_type(0, Type::sequence(std::move(element)));
}

void construct(ComputeContext& c) {
  std::vector<RuntimeValue> items;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    c.require(c.tensor(i).dtype() == c.tensor(0).dtype(), "input ", i, ": got ", name_of(c.tensor(i).dtype()),
              ", expected ", name_of(c.tensor(0).dtype()), " as input 0");
    items.emplace_back(owned(c.tensor(i)));
  }
  c.outputs[0] = RuntimeValue::sequence(std::move(items));
}

const Register sequence_construct{{.name = "SequenceConstruct",
                                   .since = 11,
                                   .doc = "A sequence of the given tensors.",
                                   .inputs = {1, -1},
                                   .types = types::plain | types::strings | types::sub_bytes,
                                   .infer = infer_construct,
                                   .compute = construct,
                                   .gradient = sequence_construct_gradient}};

void infer_empty(InferContext& c) {
  const std::int64_t code = c.node.attr_int("dtype", static_cast<std::int64_t>(DType::float32));
  c.require(is_known_dtype(code) && code != 0, "attribute 'dtype': got ", code, ", expected an element type");
  c.set_type(0, Type::sequence(Type::tensor(static_cast<DType>(code))));
}

const Register sequence_empty{{.name = "SequenceEmpty",
                               .since = 11,
                               .doc = "A sequence of no tensors.",
                               .inputs = {0, 0},
                               .types = {},
                               .infer = infer_empty,
                               .compute = [](ComputeContext& c) { c.outputs[0] = RuntimeValue::sequence({}); }}};

void infer_insert(InferContext& c) { c.set_type(0, Type::sequence(merged(c, element_type(c, 0), c.type(1)))); }

void insert(ComputeContext& c) {
  std::vector<RuntimeValue> items = c.sequence(0);
  const Tensor& added = c.tensor(1);
  if (!items.empty() && items[0].is_tensor())
    c.require(items[0].tensor.dtype() == added.dtype(), "tensor: got ", name_of(added.dtype()), ", expected ",
              name_of(items[0].tensor.dtype()), " as in the sequence");
  const std::size_t at = c.has_input(2) ? position(c, 2, items.size(), true) : items.size();
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(at), RuntimeValue(owned(added)));
  c.outputs[0] = RuntimeValue::sequence(std::move(items));
}

const Register sequence_insert{{.name = "SequenceInsert",
                                .since = 11,
                                .doc = "A sequence with one tensor more, at a position or at the end.",
                                .inputs = {2, 3},
                                .types = {},
                                .infer = infer_insert,
                                .compute = insert,
                                .gradient = sequence_insert_gradient}};

void infer_erase(InferContext& c) { c.set_type(0, Type::sequence(element_type(c, 0))); }

void erase(ComputeContext& c) {
  std::vector<RuntimeValue> items = c.sequence(0);
  c.require(!items.empty(), "sequence: got an empty one, expected something to erase");
  const std::size_t at = c.has_input(1) ? position(c, 1, items.size(), false) : items.size() - 1;
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
  c.outputs[0] = RuntimeValue::sequence(std::move(items));
}

const Register sequence_erase{{.name = "SequenceErase",
                               .since = 11,
                               .doc = "A sequence without the tensor at a position (the last one).",
                               .inputs = {1, 2},
                               .types = {},
                               .infer = infer_erase,
                               .compute = erase,
                               .gradient = sequence_erase_gradient}};

void infer_at(InferContext& c) { c.set_type(0, one_of(c, element_type(c, 0))); }

void at(ComputeContext& c) {
  const std::vector<RuntimeValue>& items = c.sequence(0);
  c.outputs[0] = items[position(c, 1, items.size(), false)];
}

const Register sequence_at{{.name = "SequenceAt",
                            .since = 11,
                            .doc = "The tensor at a position of a sequence.",
                            .inputs = {2, 2},
                            .types = {},
                            .infer = infer_at,
                            .compute = at,
                            .gradient = sequence_at_gradient}};

void infer_length(InferContext& c) {
  element_type(c, 0);
  c.set(0, DType::int64, {});
}

void length(ComputeContext& c) { c.outputs[0] = Tensor::scalar_int(static_cast<std::int64_t>(c.sequence(0).size())); }

const Register sequence_length{{.name = "SequenceLength",
                                .since = 11,
                                .doc = "How many tensors a sequence holds.",
                                .inputs = {1, 1},
                                .types = {},
                                .infer = infer_length,
                                .compute = length}};

}  // namespace
}  // namespace backpass
