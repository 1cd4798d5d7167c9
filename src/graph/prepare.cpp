#include <algorithm>
#include <array>

#include "graph/evaluate.hpp"
#include "support/convert.hpp"

namespace backpass {
namespace {

bool is_half(DType t) { return t == DType::float16 || t == DType::bfloat16; }

void widen(DType dtype, const void* from, void* to, std::int64_t n) {
  Conversion(dtype, DType::float32).parallel(from, to, n);
}

void narrow(DType dtype, const void* from, void* to, std::int64_t n) {
  Conversion(DType::float32, dtype).parallel(from, to, n);
}

struct Converted {
  std::size_t index;
  DType dtype;
  std::int64_t count;
  std::size_t offset;  // of the float copy, in scratch
};

// Replaces 16-bit tensors by float ones in `infos` and notes where their float copies will be.
std::vector<Converted> as_float(PrepareContext& context, std::vector<TensorInfo>& infos,
                                std::vector<Tensor>& constants) {
  std::vector<Converted> converted;
  for (std::size_t i = 0; i < infos.size(); ++i) {
    TensorInfo& info = infos[i];
    if (!info.present || !is_half(info.dtype)) continue;
    std::int64_t count = info.size();
    converted.push_back({i, info.dtype, count, context.reserve(static_cast<std::size_t>(count) * sizeof(float))});
    if (info.constant != nullptr) {
      Tensor wide(DType::float32, info.dims);
      widen(info.dtype, info.constant->data(), wide.mutable_data(), count);
      constants.push_back(wide);
    }
    info.dtype = DType::float32;
  }
  return converted;
}

Kernel prepare_through_float(PrepareContext& context) {
  auto constants = std::make_shared<std::vector<Tensor>>();
  constants->reserve(context.inputs.size());
  std::vector<Converted> in = as_float(context, context.inputs, *constants);
  std::vector<Converted> out = as_float(context, context.outputs, *constants);
  std::size_t next = 0;
  for (const Converted& c : in) {
    if (context.inputs[c.index].constant != nullptr) context.inputs[c.index].constant = &(*constants)[next++];
  }
  std::size_t base = context.scratch_bytes;
  PrepareContext inner(context.node);
  inner.inputs = context.inputs;
  inner.outputs = context.outputs;
  Kernel kernel = context.node.def->prepare(inner);
  context.reserve(inner.scratch_bytes);

  constexpr std::size_t kMaxTensors = 64;
  std::size_t input_count = context.inputs.size();
  std::size_t output_count = context.outputs.size();
  if (std::max(input_count, output_count) > kMaxTensors) {
    fail<Unsupported>(context.node.label(), " more than ", kMaxTensors, " tensors of a 16-bit float type; use float32");
  }
  return [=, constants = std::move(constants)](const KernelArgs& args) {
    std::array<const void*, kMaxTensors> inputs;
    std::array<void*, kMaxTensors> outputs;
    std::copy_n(args.inputs, input_count, inputs.begin());
    std::copy_n(args.outputs, output_count, outputs.begin());
    for (const Converted& c : in) {
      inputs[c.index] = args.scratch + c.offset;
      widen(c.dtype, args.inputs[c.index], args.scratch + c.offset, c.count);
    }
    for (const Converted& c : out) outputs[c.index] = args.scratch + c.offset;
    kernel({inputs.data(), outputs.data(), args.scratch + base});
    for (const Converted& c : out) narrow(c.dtype, args.scratch + c.offset, args.outputs[c.index], c.count);
  };
}

}  // namespace

Kernel prepare_kernel(PrepareContext& context) {
  if (context.node.def->half_through_float) {
    auto any_half = [](const std::vector<TensorInfo>& infos) {
      return std::any_of(infos.begin(), infos.end(), [](const TensorInfo& t) { return t.present && is_half(t.dtype); });
    };
    if (any_half(context.inputs) || any_half(context.outputs)) return prepare_through_float(context);
  }
  return context.node.def->prepare(context);
}

}  // namespace backpass
