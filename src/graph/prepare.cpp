#include <algorithm>
#include <array>
#include <atomic>

#include "graph/evaluate.hpp"
#include "support/convert.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

bool is_half(DType t) { return t == DType::float16 || t == DType::bfloat16; }

void widen(DType dtype, const void* from, void* to, std::int64_t n) {
  Conversion(dtype, DType::float32).parallel(from, to, n);
}

void narrow(DType dtype, const void* from, void* to, std::int64_t n) {
  Conversion(DType::float32, dtype).parallel(from, to, n);
}

constexpr std::size_t kMaxTensors = 64;

/// Elements that are converted together where that need not be all: their float copies stay in a second-level cache.
constexpr std::int64_t kSliceElements = 32768;

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

/// A slice of every tensor, through float by a kernel for this size.
struct SlicedKernel {
  Kernel kernel;
  std::vector<std::size_t> input_steps, output_steps;  ///< bytes from one slice's beginning to the next's
  std::size_t scratch_bytes = 0;

  /// `slices` of the elements that the first `axes` axes number, all of which there are `of`.
  SlicedKernel(const PrepareContext& all, int axes, std::int64_t slices, std::int64_t of) {
    PrepareContext context(all.node);
    context.inputs = all.inputs;
    context.outputs = all.outputs;
    const auto cut = [&](std::vector<TensorInfo>& infos, std::vector<std::size_t>& steps) {
      for (TensorInfo& t : infos) {
        steps.push_back(t.present ? byte_size(t.dtype, t.size() / of) : 0);
        t.constant = nullptr;
        if (!t.present) continue;
        std::fill_n(t.dims.begin(), axes, 1);
        t.dims[static_cast<std::size_t>(axes) - 1] = slices;
      }
    };
    cut(context.inputs, input_steps);
    cut(context.outputs, output_steps);
    kernel = prepare_through_float(context);
    scratch_bytes = context.scratch_bytes;
  }

  void run(const KernelArgs& args, std::int64_t first, std::byte* scratch) const {
    std::array<const void*, kMaxTensors> inputs;
    std::array<void*, kMaxTensors> outputs;
    const auto at = static_cast<std::size_t>(first);
    for (std::size_t i = 0; i < input_steps.size(); ++i) {
      inputs[i] = args.inputs[i] == nullptr ? nullptr : args.in<std::byte>(i) + at * input_steps[i];
    }
    for (std::size_t i = 0; i < output_steps.size(); ++i) {
      outputs[i] = args.outputs[i] == nullptr ? nullptr : args.out<std::byte>(i) + at * output_steps[i];
    }
    kernel({inputs.data(), outputs.data(), scratch});
  }
};

/// How many slices the first `axes` axes make of every tensor; 0 where tensors differ in that.
std::int64_t common_slices(const PrepareContext& c, int axes) {
  const auto slices = [&](const TensorInfo& t) {
    return t.rank() < axes ? 0 : element_count(Dims(t.dims.begin(), t.dims.begin() + axes));
  };
  const std::int64_t count = slices(c.inputs.at(0));
  const auto agrees = [&](const TensorInfo& t) { return !t.present || slices(t) == count; };
  const bool all =
      std::all_of(c.inputs.begin(), c.inputs.end(), agrees) && std::all_of(c.outputs.begin(), c.outputs.end(), agrees);
  return all ? count : 0;
}

/// A null kernel where there is nothing to cut.
Kernel prepare_by_slices(PrepareContext& context, int axes) {
  const std::int64_t slices = axes > 0 ? common_slices(context, axes) : 0;
  if (slices < 2) return {};
  std::int64_t elements = 0;
  for (const TensorInfo& t : context.inputs) elements += t.present ? t.size() / slices : 0;
  for (const TensorInfo& t : context.outputs) elements += t.present ? t.size() / slices : 0;
  const std::int64_t together =
      std::clamp<std::int64_t>(kSliceElements / std::max<std::int64_t>(1, elements), 1, slices);
  const SlicedKernel whole(context, axes, together, slices);
  const std::int64_t left = slices % together;
  const SlicedKernel last = left == 0 ? whole : SlicedKernel(context, axes, left, slices);

  const std::int64_t pieces = (slices + together - 1) / together;
  const std::int64_t workers = std::min<std::int64_t>(pieces, threads_here());
  const std::size_t share = (std::max(whole.scratch_bytes, last.scratch_bytes) + 63) / 64 * 64;
  const std::size_t offset = context.reserve(static_cast<std::size_t>(workers) * share);
  return [=](const KernelArgs& args) {
    std::atomic<std::int64_t> next = 0;
    parallel_for(workers, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t worker = begin; worker < end; ++worker) {
        std::byte* own = args.scratch + offset + static_cast<std::size_t>(worker) * share;
        for (std::int64_t i = next++; i < pieces; i = next++) {
          ((i + 1) * together <= slices ? whole : last).run(args, i * together, own);
        }
      }
    });
  };
}

Kernel prepare_half(PrepareContext& context) {
  const OpDef& def = *context.node.def;
  if (def.prepare_half != nullptr) {
    if (Kernel kernel = def.prepare_half(context)) return kernel;
  }
  if (Kernel kernel = prepare_by_slices(context, def.separate_axes)) return kernel;
  return prepare_through_float(context);
}

}  // namespace

Kernel prepare_kernel(PrepareContext& context) {
  if (context.node.def->half_through_float) {
    auto any_half = [](const std::vector<TensorInfo>& infos) {
      return std::any_of(infos.begin(), infos.end(), [](const TensorInfo& t) { return t.present && is_half(t.dtype); });
    };
    if (any_half(context.inputs) || any_half(context.outputs)) return prepare_half(context);
  }
  return context.node.def->prepare(context);
}

}  // namespace backpass
