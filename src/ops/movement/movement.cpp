#include "ops/movement/movement.hpp"

#include "graph/builder.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/sub_byte.hpp"
#include "support/visit.hpp"

namespace backpass::movement {
namespace {

constexpr std::size_t kMaxTracked = 1024;

struct Packed {
  std::size_t index;  ///< of the input or output
  DType dtype;
  std::int64_t count;
  std::size_t offset;  ///< of its bytes in scratch memory
};

std::vector<Packed> replace_packed(PrepareContext& context, std::vector<TensorInfo>& tensors) {
  std::vector<Packed> packed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorInfo& t = tensors[i];
    if (!t.present || !is_sub_byte(t.dtype)) continue;
    auto bytes = static_cast<std::size_t>(t.size());
    packed.push_back({i, t.dtype, t.size(), context.reserve(bytes)});
    t.dtype = DType::uint8;
    t.constant = nullptr;
  }
  return packed;
}

}  // namespace

Kernel through_bytes(PrepareContext& context, Kernel (*prepare)(PrepareContext&)) {
  std::vector<Packed> ins = replace_packed(context, context.inputs);
  std::vector<Packed> outs = replace_packed(context, context.outputs);
  Kernel kernel = prepare(context);
  if (ins.empty() && outs.empty()) return kernel;
  std::size_t input_count = context.inputs.size();
  std::size_t output_count = context.outputs.size();
  return [=](const KernelArgs& args) {
    std::vector<const void*> inputs(args.inputs, args.inputs + input_count);
    std::vector<void*> outputs(args.outputs, args.outputs + output_count);
    for (const Packed& p : ins) {
      auto* bytes = reinterpret_cast<std::uint8_t*>(args.scratch + p.offset);
      kernels::unpack_elements(p.dtype, inputs[p.index], bytes, p.count);
      inputs[p.index] = bytes;
    }
    for (const Packed& p : outs) outputs[p.index] = args.scratch + p.offset;
    kernel({inputs.data(), outputs.data(), args.scratch});
    for (const Packed& p : outs) {
      auto* bytes = reinterpret_cast<const std::uint8_t*>(args.scratch + p.offset);
      kernels::pack_elements(p.dtype, bytes, args.outputs[p.index], p.count);
    }
  };
}

std::vector<std::int64_t> read_ints(DType dtype, const void* data, std::int64_t count) {
  std::vector<std::int64_t> values;
  visit_index(dtype, [&]<class T>() {
    const T* p = static_cast<const T*>(data);
    values.assign(p, p + count);
  });
  return values;
}

Kernel prepare_copy(PrepareContext& context) {
  DType dtype = context.in(0).dtype;
  std::int64_t count = context.in(0).size();
  context.require(count == context.out(0).size(), "number of elements: got ", count, " in ", shown(context.in(0).dims),
                  ", expected ", context.out(0).size(), " for ", shown(context.out(0).dims));
  return [=](const KernelArgs& args) {
    if (args.inputs[0] != args.outputs[0]) kernels::copy_elements(dtype, args.inputs[0], args.outputs[0], count);
  };
}

void set_ints(InferContext& context, std::size_t output, std::vector<Dim> values) {
  if (output >= context.outputs.size() || values.size() > kMaxTracked) return;
  DType dtype = context.outputs[output].dtype;
  if (is_integer(dtype) || dtype == DType::boolean) context.set_ints(output, std::move(values));
}

std::optional<std::vector<Dim>> ints_of_rank(const InferContext& context, std::size_t i, std::size_t rank) {
  if (!context.knows_shape(i) || context.rank(i) != rank) return std::nullopt;
  return context.maybe_ints(i);
}

std::optional<std::vector<Dim>> index_list(const InferContext& context, std::size_t i, std::string_view name) {
  context.require(types::indices.has(context.dtype(i)), name, ": got ", shown(context.type(i)),
                  ", expected int32 or int64");
  if (!context.knows_shape(i)) return context.maybe_ints(i);
  context.require(context.rank(i) <= 1, name, ": got ", shown(context.type(i)), ", expected a 1-D tensor");
  const Tensor* all = context.constant(i);
  if (all == nullptr) return context.maybe_ints(i);
  std::vector<std::int64_t> values = all->to_ints();  // more than inference would follow, too
  return std::vector<Dim>(values.begin(), values.end());
}

std::optional<std::vector<std::int64_t>> numbers(const std::optional<std::vector<Dim>>& values) {
  if (!values) return std::nullopt;
  std::vector<std::int64_t> known;
  for (const Dim& d : *values) {
    if (!d.is_known()) return std::nullopt;
    known.push_back(d.value());
  }
  return known;
}

void require_same_dtype(const InferContext& context, std::size_t a, std::size_t b) {
  context.require(context.dtype(a) == context.dtype(b), "element types of inputs ", a, " and ", b, ": got ",
                  name_of(context.dtype(a)), " and ", name_of(context.dtype(b)), ", expected the same");
}

void require_index(const InferContext& context, std::size_t i) {
  context.require(types::indices.has(context.dtype(i)), "element type of input ", i, ": got ",
                  name_of(context.dtype(i)), ", expected int32 or int64");
}

void ints_attribute_to_input(Builder& builder, Node& node, std::string_view attribute, std::size_t input) {
  if (!node.has_attribute(attribute)) return;
  builder.graph.set_input(node, input, builder.ints(node.attr_ints(attribute)));
  node.attributes.erase(node.attributes.find(attribute));
}

void int_attribute_to_input(Builder& builder, Node& node, std::string_view attribute, std::size_t input) {
  if (!node.has_attribute(attribute)) return;
  builder.graph.set_input(node, input, builder.integer(node.attr_int(attribute)));
  node.attributes.erase(node.attributes.find(attribute));
}

}  // namespace backpass::movement
