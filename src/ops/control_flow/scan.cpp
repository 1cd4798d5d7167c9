// Scan: runs a body over slices of tensors, handing state from one step to the
// next.
#include <algorithm>
#include <utility>
#include <vector>

#include "gradient/rule.hpp"
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/control_flow/iteration_rule.hpp"
#include "ops/control_flow/subgraph.hpp"

namespace backpass {
namespace {

// Opset 8 also looped over a batch axis and took lengths as first input: nodes of that form become this operator of
// domain backpass.
constexpr const char* kBatched = "BatchedScan";

struct Plan {
  bool batched = false;
  std::size_t first = 0;  ///< position of the first state among the inputs
  std::size_t states = 0, scans_in = 0, scans_out = 0;
  std::vector<std::int64_t> in_axes, in_reversed, out_axes, out_reversed;
};

std::vector<std::int64_t> per_item(const Node& node, const char* key, std::size_t count) {
  std::vector<std::int64_t> values = node.attr_ints(key);
  if (values.empty()) values.assign(count, 0);
  if (values.size() != count)
    fail(node.label(), " attribute '", key, "': got ", values.size(), " values, expected ", count);
  return values;
}

Plan plan_of(const Node& node) {
  Plan p;
  p.batched = node.op == kBatched;
  p.first = p.batched ? 1 : 0;
  const auto inputs = static_cast<std::int64_t>(node.inputs.size()) - static_cast<std::int64_t>(p.first);
  const std::int64_t scans = node.attr_int("num_scan_inputs");
  if (scans < 1 || scans > inputs)
    fail(node.label(), " attribute 'num_scan_inputs': got ", scans, ", expected 1 to ", inputs,
         " (the number of inputs)");
  p.scans_in = static_cast<std::size_t>(scans);
  p.states = static_cast<std::size_t>(inputs - scans);
  if (node.outputs.size() < p.states)
    fail(node.label(), " outputs: got ", node.outputs.size(), ", expected at least one per state, ", p.states);
  p.scans_out = node.outputs.size() - p.states;
  p.in_axes = per_item(node, "scan_input_axes", p.scans_in);
  p.in_reversed = per_item(node, "scan_input_directions", p.scans_in);
  p.out_axes = per_item(node, "scan_output_axes", p.scans_out);
  p.out_reversed = per_item(node, "scan_output_directions", p.scans_out);
  body_of(node, "body", inputs, static_cast<std::int64_t>(node.outputs.size()));
  return p;
}

void drop_axis(Type& type, std::size_t axis) {
  type.shape->erase(type.shape->begin() + static_cast<std::ptrdiff_t>(axis));
}

// The type of one scan input inside the body; its length is unified with
// `length`.
Type slice_type(InferContext& c, const Plan& p, std::size_t i, std::optional<Dim>& batch, std::optional<Dim>& length) {
  Type type = c.type(p.first + p.states + i);
  if (type.kind == Type::Kind::unknown) return type;
  c.require(type.is_tensor(), "scan input ", i, ": got ", shown(type), ", expected a tensor");
  if (!type.shape) return type;
  auto take_axis = [&](std::size_t axis, std::optional<Dim>& extent, std::string_view what) {
    extent = extent ? c.unify(*extent, (*type.shape)[axis], what) : (*type.shape)[axis];
    drop_axis(type, axis);
  };
  if (p.batched) {
    c.require(type.shape->size() >= 2, "scan input ", i, ": got ", shown(type),
              ", expected a batch and a sequence axis");
    take_axis(1, length, "lengths of the scan inputs");
    take_axis(0, batch, "batch extents");
  } else {
    take_axis(c.axis(p.in_axes[i], type.shape->size()), length, "lengths of the scan inputs");
  }
  return type;
}

std::vector<Type> state_types(InferContext& c, const Plan& p, std::optional<Dim>& batch) {
  std::vector<Type> types;
  for (std::size_t i = 0; i < p.states; ++i) {
    Type type = c.type(p.first + i);
    if (p.batched && type.shape) {
      c.require(!type.shape->empty(), "state ", i, ": got a scalar, expected a batch axis");
      batch = batch ? c.unify(*batch, type.shape->front(), "batch extents") : type.shape->front();
      drop_axis(type, 0);
    }
    types.push_back(std::move(type));
  }
  return types;
}

void infer(InferContext& c) {
  const Plan p = plan_of(c.node);
  std::optional<Dim> batch;
  std::optional<Dim> length;
  std::vector<Type> states = state_types(c, p, batch);
  std::vector<Type> slices;
  for (std::size_t i = 0; i < p.scans_in; ++i) slices.push_back(slice_type(c, p, i, batch, length));
  auto call = [&](const std::vector<Type>& variables) {
    std::vector<Type> inputs = variables;
    inputs.insert(inputs.end(), slices.begin(), slices.end());
    return infer_body(c.node, "body", std::move(inputs));
  };
  IterationTypes found = iteration_types(c, std::move(states), 0, call);
  const Dim rows = batch ? *batch : p.batched ? c.data_dependent("batch") : Dim(0);
  const Dim steps = length ? *length : c.data_dependent("steps");
  for (std::size_t i = 0; i < p.states; ++i) {
    if (p.batched && found.variables[i].shape)
      found.variables[i].shape->insert(found.variables[i].shape->begin(), rows);
    c.set_type(i, std::move(found.variables[i]));
  }
  for (std::size_t i = 0; i < p.scans_out; ++i) {
    Type& type = found.others[i];
    if (type.shape) {
      const std::size_t axis = c.axis(p.out_axes[i], type.shape->size() + 1);
      type.shape->insert(type.shape->begin() + static_cast<std::ptrdiff_t>(axis), steps);
      if (p.batched) type.shape->insert(type.shape->begin(), rows);
    }
    c.set_type(p.states + i, std::move(type));
  }
}

struct Results {
  std::vector<RuntimeValue> states;
  std::vector<Tensor> scans;
};

// What the symbols in the types of the body's inputs stand for.
SymbolValues symbols_of(const Plan& p, const Graph& body, const std::vector<RuntimeValue>& states,
                        const std::vector<Tensor>& sources, const std::vector<std::size_t>& axes) {
  SymbolValues known;
  for (std::size_t i = 0; i < p.states; ++i)
    if (states[i].is_tensor()) learn_symbols(body.inputs[i]->type, states[i].tensor.dims(), known);
  for (std::size_t i = 0; i < p.scans_in; ++i) {
    Dims slice = sources[i].dims();
    slice.erase(slice.begin() + static_cast<std::ptrdiff_t>(axes[i]));
    learn_symbols(body.inputs[p.states + i]->type, slice, known);
  }
  return known;
}

// Runs the body over `length` steps of `sources`, whose axes to walk are
// in_axes.
Results run_steps(ComputeContext& c, const Plan& p, std::vector<RuntimeValue> states,
                  const std::vector<Tensor>& sources, const std::vector<std::size_t>& axes, std::int64_t length) {
  std::vector<std::vector<Tensor>> collected(p.scans_out);
  for (std::int64_t step = 0; step < length; ++step) {
    std::vector<RuntimeValue> inputs = std::move(states);
    for (std::size_t i = 0; i < p.scans_in; ++i)
      inputs.emplace_back(pick(sources[i], axes[i], p.in_reversed[i] != 0 ? length - 1 - step : step));
    std::vector<RuntimeValue> results = c.run_subgraph("body", std::move(inputs));
    ensure(results.size() == p.states + p.scans_out, "Scan: number of results");
    states.clear();
    for (std::size_t i = 0; i < p.states; ++i) states.push_back(owned(results[i]));
    for (std::size_t i = 0; i < p.scans_out; ++i) {
      c.require(results[p.states + i].is_tensor(), "scan output ", i, ": expected a tensor from the body");
      collected[i].push_back(owned(results[p.states + i].tensor));
    }
  }
  const Graph& body = body_of(c.node, "body");
  const SymbolValues symbols = length == 0 ? symbols_of(p, body, states, sources, axes) : SymbolValues{};
  Results out{std::move(states), {}};
  for (std::size_t i = 0; i < p.scans_out; ++i) {
    if (p.out_reversed[i] != 0) std::reverse(collected[i].begin(), collected[i].end());
    const Type& element = body.outputs[p.states + i]->type;
    const std::size_t rank =
        collected[i].empty() ? (element.shape ? element.shape->size() : 0) : collected[i][0].dims().size();
    const std::size_t axis = c.axis(p.out_axes[i], rank + 1);
    out.scans.push_back(collected[i].empty() ? empty_scan_output(element, axis, symbols) : stacked(collected[i], axis));
  }
  return out;
}

// Zeros after the last step, up to the extent that all rows of a batch have.
Tensor padded(const Tensor& tensor, std::int64_t length) {
  Dims dims = tensor.dims();
  if (dims[0] == length) return tensor;
  dims[0] = length - dims[0];
  Tensor zeros(tensor.dtype(), dims);
  fill_zero(zeros);
  return joined(std::vector<Tensor>{tensor, zeros}, 0);
}

void compute_batched(ComputeContext& c, const Plan& p) {
  const Tensor& leader = c.tensor(p.first + p.states);
  c.require(leader.rank() >= 2, "scan input 0: got rank ", leader.rank(), ", expected at least 2");
  const std::int64_t batch = leader.dims()[0];
  const std::int64_t longest = leader.dims()[1];
  c.require(batch > 0, "batch extent: got 0, expected at least 1");
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), longest);
  if (c.has_input(0)) lengths = c.tensor(0).to_ints();
  c.require(static_cast<std::int64_t>(lengths.size()) == batch, "sequence_lens: got ", lengths.size(),
            " values, expected ", batch);
  std::vector<std::vector<Tensor>> columns(p.states + p.scans_out);
  for (std::int64_t row = 0; row < batch; ++row) {
    const std::int64_t length = lengths[static_cast<std::size_t>(row)];
    c.require(length >= 0 && length <= longest, "sequence_lens[", row, "]: got ", length, ", expected 0 to ", longest);
    std::vector<RuntimeValue> states;
    std::vector<Tensor> sources;
    for (std::size_t i = 0; i < p.states + p.scans_in; ++i) {
      const Tensor& input = c.tensor(p.first + i);
      const bool fits = input.rank() >= 1 && input.dims()[0] == batch &&
                        (i < p.states || (input.rank() >= 2 && input.dims()[1] == longest));
      c.require(fits, "input ", p.first + i, ": got ", shown(input.dims()), ", expected batch ", batch, " and length ",
                longest);
      if (i < p.states) {
        states.emplace_back(pick(input, 0, row));
      } else {
        sources.push_back(pick(input, 0, row));
      }
    }
    Results r = run_steps(c, p, std::move(states), sources, std::vector<std::size_t>(p.scans_in, 0), length);
    for (std::size_t i = 0; i < p.states; ++i) columns[i].push_back(r.states[i].tensor);
    for (std::size_t i = 0; i < p.scans_out; ++i) columns[p.states + i].push_back(padded(r.scans[i], longest));
  }
  for (std::size_t i = 0; i < columns.size(); ++i) c.outputs[i] = stacked(columns[i], 0);
}

void compute(ComputeContext& c) {
  const Plan p = plan_of(c.node);
  if (p.batched) return compute_batched(c, p);
  std::vector<RuntimeValue> states;
  for (std::size_t i = 0; i < p.states; ++i) states.push_back(owned(c.inputs[i]));
  std::vector<Tensor> sources;
  std::vector<std::size_t> axes;
  std::int64_t length = -1;
  for (std::size_t i = 0; i < p.scans_in; ++i) {
    const Tensor& source = c.tensor(p.states + i);
    axes.push_back(c.axis(p.in_axes[i], source.dims().size()));
    const std::int64_t extent = source.dims()[axes.back()];
    c.require(length < 0 || extent == length, "length of scan input ", i, ": got ", extent, ", expected ", length);
    length = extent;
    sources.push_back(source);
  }
  Results r = run_steps(c, p, std::move(states), sources, axes, length);
  for (std::size_t i = 0; i < p.states; ++i) c.outputs[i] = std::move(r.states[i]);
  for (std::size_t i = 0; i < p.scans_out; ++i) c.outputs[p.states + i] = std::move(r.scans[i]);
}

Iteration iteration_of(const Node& node) {
  const Plan p = plan_of(node);
  const Graph& body = body_of(node, "body");
  Iteration it;
  for (std::size_t i = 0; i < p.states; ++i) it.states.push_back({i, i, body.inputs[i], body.outputs[i]});
  for (std::size_t i = 0; i < p.scans_in; ++i)
    it.reads.push_back({p.states + i, body.inputs[p.states + i], p.in_axes[i], p.in_reversed[i]});
  for (std::size_t i = 0; i < p.scans_out; ++i)
    it.writes.push_back({p.states + i, body.outputs[p.states + i], p.out_axes[i], p.out_reversed[i]});
  return it;
}

void gradient(GradientContext& g) { iteration_gradient(g, iteration_of(g.node), true); }

void fused_gradient(GradientContext& g) { iteration_gradient(g, iteration_of(g.node), false); }

const Register scan{{.name = "Scan",
                     .since = 25,
                     .doc = "Runs a body over slices of tensors, handing state "
                            "from one step to the next.",
                     .inputs = {1, -1},
                     .outputs = {1, -1},
                     .types = {},
                     .infer = infer,
                     .compute = compute,
                     .gradient = gradient,
                     .fused_gradient = fused_gradient}};

const Register batched_scan{
    {.name = "BatchedScan",
     .domain = "backpass",
     .doc = "Scan of opset 8, which loops over a batch; for gradients convert the model to opset 9.",
     .inputs = {2, -1},
     .outputs = {1, -1},
     .types = {},
     .infer = infer,
     .compute = compute}};

void lift_batched(Builder&, Node& node) {
  node.domain = "backpass";
  node.op = kBatched;
  if (auto directions = node.attributes.find("directions"); directions != node.attributes.end()) {
    node.attributes.insert_or_assign("scan_input_directions", directions->second);
    node.attributes.erase("directions");
  }
}
const RegisterAdapter scan_9{{"Scan", 9, lift_batched}};

}  // namespace
}  // namespace backpass
