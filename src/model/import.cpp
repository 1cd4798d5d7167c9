#include "model/import.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "model/conformance.hpp"
#include "model/export.hpp"
#include "model/gradient_nodes.hpp"
#include "model/import_tensor.hpp"
#include "model/inlined_size.hpp"
#include "ops/custom/custom_operator.hpp"
#include "ops/custom/function_gradient.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kMaxInlined = 1'000'000;  // nodes of a model that has functions
constexpr std::size_t kMaxCallDepth = 64;

using Opsets = std::map<std::string, std::int64_t>;

/// What is the same everywhere in one import.
struct Session {
  Functions functions;
  std::vector<Problem> problems;

  void note(Problem::Kind kind, std::string text, const onnx_io::NodeProto* node = nullptr) {
    problems.push_back({kind, node ? node->name : "", node ? node->op_type : "", std::move(text)});
  }
};

/// Names visible at one place. A function body has no parent scope; a subgraph sees its parent's names by capturing
/// them.
class Scope {
 public:
  Scope(Graph& graph, Scope* parent) : graph_(graph), parent_(parent) {}

  Graph& graph() { return graph_; }

  bool define(const std::string& name, Value* value) { return names_.emplace(name, value).second; }

  Value* find_local(const std::string& name) const {
    auto it = names_.find(name);
    return it == names_.end() ? nullptr : it->second;
  }

  Value* find(const std::string& name) {
    auto it = names_.find(name);
    if (it != names_.end()) return it->second;
    if (parent_ == nullptr) return nullptr;
    Value* outer = parent_->find(name);
    if (outer == nullptr) return nullptr;
    Value* inner = graph_.add_value(name, outer->type);
    inner->constant = outer->constant;
    graph_.add_capture(outer, inner);
    names_.emplace(name, inner);
    return inner;
  }

 private:
  Graph& graph_;
  Scope* parent_;
  std::unordered_map<std::string, Value*> names_;
};

/// A function being inlined: its parameters' values, and who called it.
struct Call {
  const onnx_io::FunctionProto* function = nullptr;
  const onnx_io::NodeProto* caller = nullptr;
  const Call* outer = nullptr;
  std::string prefix;

  std::size_t depth() const { return outer == nullptr ? 1 : outer->depth() + 1; }
  bool contains(const onnx_io::FunctionProto* f) const {
    return function == f || (outer != nullptr && outer->contains(f));
  }
};

class Importer {
 public:
  Importer(Session& session, const Opsets& opsets, const Call* call = nullptr)
      : session_(session), opsets_(opsets), call_(call) {}

  void build_graph(const onnx_io::GraphProto& proto, Graph& graph, Scope& scope) {
    graph.name = proto.name;
    add_initializers(proto, scope);
    for (const onnx_io::ValueInfoProto& info : proto.input) add_input(info, scope);
    add_nodes(proto.node, scope);
    for (const onnx_io::ValueInfoProto& info : proto.value_info) believe(info, scope);
    for (const onnx_io::ValueInfoProto& info : proto.output) {
      Value* v = scope.find(info.name);
      if (v == nullptr) {
        session_.note(Problem::Kind::invalid, concat("graph '", proto.name, "' output '", info.name,
                                                     "' is not defined by any node, input or initializer"));
        continue;
      }
      if (v->type.kind == Type::Kind::unknown) v->type = to_type(info.type, info.name);
      graph.outputs.push_back(v);
    }
    graph.sort_topologically();
  }

  void add_nodes(const std::vector<onnx_io::NodeProto>& nodes, Scope& scope) {
    for (const onnx_io::NodeProto& node : nodes) define_outputs(node, scope);
    for (const onnx_io::NodeProto& node : nodes) add_node(node, scope);
  }

 private:
  std::string local(const std::string& name) const { return call_ == nullptr ? name : call_->prefix + name; }

  void add_initializers(const onnx_io::GraphProto& proto, Scope& scope) {
    auto add = [&](const std::string& name, Tensor tensor) {
      Value* v = scope.graph().add_constant(name, std::move(tensor));
      if (!scope.define(name, v)) {
        session_.note(Problem::Kind::invalid, concat("initializer '", name, "' is defined twice"));
      }
    };
    for (const onnx_io::TensorProto& t : proto.initializer) add(t.name, to_tensor(t));
    for (const onnx_io::SparseTensorProto& t : proto.sparse_initializer) add(t.values.name, to_dense(t));
  }

  void add_input(const onnx_io::ValueInfoProto& info, Scope& scope) {
    const Value* initializer = scope.find_local(info.name);
    if (initializer != nullptr && initializer->constant)
      return;  // an initializer that is also listed as input (always so before IR 4) stays a constant
    Value* v = scope.graph().add_value(info.name, to_type(info.type, info.name));
    scope.graph().inputs.push_back(v);
    if (!scope.define(info.name, v)) {
      session_.note(Problem::Kind::invalid, concat("graph input '", info.name, "' is declared twice"));
    }
  }

  /// Declared types of inner values are not needed, but for the operators whose inputs do not tell how large the output
  /// is. Their kernels check whatever the file says.
  void believe(const onnx_io::ValueInfoProto& info, const Scope& scope) {
    Value* v = scope.find_local(info.name);
    if (v == nullptr || v->producer == nullptr || v->type.kind != Type::Kind::unknown) return;
    const std::string& op = v->producer->op;
    if (op == "MaxPoolGrad" || op == "AveragePoolGrad") v->type = to_type(info.type, info.name);
  }

  void define_outputs(const onnx_io::NodeProto& node, Scope& scope) {
    for (const std::string& name : node.output) {
      if (name.empty() || outputs_.count(&name) != 0) continue;
      Value* bound = bound_output(name);
      Value* v = bound != nullptr ? bound : scope.graph().add_value(local(name));
      if (!scope.define(name, v)) {
        session_.note(Problem::Kind::invalid,
                      concat("[", node.op_type, " '", node.name, "'] output '", name,
                             "' is already defined; every value has exactly one definition"),
                      &node);
        v = scope.graph().add_value(local(name));
      }
      outputs_[&name] = v;
    }
  }

  Value* bound_output(const std::string& name) {
    auto it = bound_outputs_.find(name);
    return it == bound_outputs_.end() ? nullptr : it->second;
  }

  void add_node(const onnx_io::NodeProto& proto, Scope& scope) {
    std::vector<Value*> inputs;
    for (const std::string& name : proto.input) {
      Value* v = name.empty() ? nullptr : scope.find(name);
      if (v == nullptr && !name.empty() && !is_omitted_parameter(name)) {
        session_.note(Problem::Kind::invalid,
                      concat("[", proto.op_type, " '", proto.name, "'] input '", name,
                             "' is not defined: no node, graph input or initializer has that name"),
                      &proto);
      }
      inputs.push_back(v);
    }
    while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
    if (is_gradient_node(proto)) {
      Value* y = scope.find(differentiated_name(proto));
      if (y == nullptr) fail("[Gradient '", proto.name, "'] y: expected the name of a value of the graph");
      inputs.push_back(y);
    }
    std::vector<Value*> outputs;
    for (const std::string& name : proto.output) outputs.push_back(name.empty() ? nullptr : outputs_.at(&name));

    auto it = session_.functions.find({proto.domain, proto.op_type, proto.overload});
    if (it != session_.functions.end()) {
      if (find_function_gradient(proto.domain, proto.op_type) != nullptr) {
        inline_with_gradient(*it->second, proto, inputs, outputs, scope);
      } else {
        inline_function(*it->second, proto, inputs, outputs, scope);
      }
      return;
    }
    Node* node = scope.graph().add_node(proto.op_type, std::move(inputs), std::move(outputs),
                                        local(proto.name.empty() ? first_output(proto) : proto.name), proto.domain);
    node->opset = opset_of(proto);
    if (node->def != nullptr && node->def->is_lowered) {
      session_.note(
          Problem::Kind::unsupported,
          concat(node->label(), " operator: got ", node->domain, ".", node->op,
                 ", which exists in plans only, expected operators of a model; export it before it is planned"),
          &proto);
    }
    for (const onnx_io::AttributeProto& a : proto.attribute) add_attribute(a, *node, scope);
  }

  static std::string first_output(const onnx_io::NodeProto& proto) {
    return proto.output.empty() ? "" : proto.output.front();
  }

  bool is_omitted_parameter(const std::string& name) const {
    if (call_ == nullptr) return false;
    const auto& parameters = call_->function->input;
    return std::find(parameters.begin(), parameters.end(), name) != parameters.end();
  }

  std::int64_t opset_of(const onnx_io::NodeProto& proto) {
    auto it = opsets_.find(proto.domain);
    if (it != opsets_.end()) return it->second;
    session_.note(Problem::Kind::invalid,
                  concat("[", proto.op_type, " '", proto.name, "'] domain '", proto.domain,
                         "' is not among the model's opset_import; add it"),
                  &proto);
    return 1;
  }

  void inline_function(const onnx_io::FunctionProto& function, const onnx_io::NodeProto& caller,
                       const std::vector<Value*>& inputs, const std::vector<Value*>& outputs, Scope& scope) {
    if (call_ != nullptr && (call_->contains(&function) || call_->depth() >= kMaxCallDepth)) {
      fail("function '", function.domain, ".", function.name, "' calls itself or nests more than ", kMaxCallDepth,
           " deep; ONNX functions may not recurse");
    }
    Call call{&function, &caller, call_, local(caller.name.empty() ? function.name : caller.name) + "/"};
    Opsets opsets = opsets_;
    for (const onnx_io::OpsetId& id : function.opset_import) opsets[id.domain] = id.version;
    Importer inner(session_, opsets, &call);
    Scope body(scope.graph(), nullptr);
    for (std::size_t i = 0; i < function.input.size(); ++i) {
      if (i < inputs.size() && inputs[i] != nullptr) body.define(function.input[i], inputs[i]);
    }
    for (std::size_t i = 0; i < function.output.size() && i < outputs.size(); ++i) {
      if (outputs[i] != nullptr) inner.bound_outputs_[function.output[i]] = outputs[i];
    }
    inner.caller_importer_ = this;
    inner.add_nodes(function.node, body);
    for (std::size_t i = 0; i < function.output.size() && i < outputs.size(); ++i) {
      Value* produced = body.find(function.output[i]);
      if (outputs[i] == nullptr || produced == outputs[i]) continue;
      if (produced == nullptr) {
        session_.note(Problem::Kind::invalid,
                      concat("function '", function.name, "' never defines its output '", function.output[i], "'"));
        continue;
      }
      scope.graph().add_node("Identity", {produced}, {outputs[i]},
                             call.prefix + function.output[i]);  // a passed-through input
    }
  }

  /// A function that users differentiate by a rule of their own.
  void inline_with_gradient(const onnx_io::FunctionProto& function, const onnx_io::NodeProto& caller,
                            const std::vector<Value*>& inputs, const std::vector<Value*>& outputs, Scope& scope) {
    std::vector<Value*> results;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      results.push_back(outputs[k] == nullptr ? nullptr : scope.graph().add_value(outputs[k]->name + "/result"));
    }
    inline_function(function, caller, inputs, results, scope);
    Node* node = add_function_gradient(scope.graph(), results, inputs, outputs, {caller.domain, caller.op_type},
                                       local(caller.name.empty() ? first_output(caller) : caller.name));
    for (const onnx_io::AttributeProto& a : caller.attribute) add_attribute(a, *node, scope);
  }

  /// Inside a function, an attribute may stand for the caller's attribute of another name.
  const onnx_io::AttributeProto* resolve(const onnx_io::AttributeProto& a) const {
    if (a.ref_attr_name.empty() || call_ == nullptr) return &a;
    for (const onnx_io::AttributeProto& given : call_->caller->attribute) {
      if (given.name == a.ref_attr_name) return caller_importer_->resolve(given);
    }
    for (const onnx_io::AttributeProto& given : call_->function->attribute_proto) {
      if (given.name == a.ref_attr_name) return &given;
    }
    return nullptr;  // the parameter was not given: the attribute is absent too
  }

  void add_attribute(const onnx_io::AttributeProto& proto, Node& node, Scope& scope) {
    const onnx_io::AttributeProto* a = resolve(proto);
    if (a == nullptr) return;
    auto has_name = [&](const auto& subgraph) { return subgraph.first == proto.name; };
    if (node.has_attribute(proto.name) || std::any_of(node.subgraphs.begin(), node.subgraphs.end(), has_name)) {
      session_.note(Problem::Kind::invalid, concat(node.label(), " attribute '", proto.name, "' is given twice"));
      return;
    }
    using T = onnx_io::AttributeProto::Type;
    auto set = [&](Attribute value) { node.attributes.emplace(proto.name, std::move(value)); };
    switch (a->type) {
      case T::float_:
        return set(a->f);
      case T::int_:
        return set(a->i);
      case T::string:
        return set(a->s);
      case T::floats:
        return set(a->floats);
      case T::ints:
        return set(a->ints);
      case T::strings:
        return set(a->strings);
      case T::tensor:
        return set(to_tensor(a->tensors.at(0)));
      case T::tensors: {
        std::vector<Tensor> tensors;
        for (const onnx_io::TensorProto& t : a->tensors) tensors.push_back(to_tensor(t));
        return set(std::move(tensors));
      }
      case T::sparse_tensor:
        return set(to_dense(a->sparse_tensors.at(0)));
      case T::type_proto:
        return set(to_type(a->type_protos.at(0), node.name));
      case T::graph:
        return add_subgraph(proto.name, *a->graphs.at(0), node, scope);
      case T::graphs:
        for (const auto& g : a->graphs) add_subgraph(proto.name, *g, node, scope);
        return;
      default:
        session_.note(Problem::Kind::unsupported, concat(node.label(), " attribute '", proto.name, "' has kind ",
                                                         static_cast<int>(a->type), ", which is not supported"));
    }
  }

  void add_subgraph(const std::string& key, const onnx_io::GraphProto& proto, Node& node, Scope& scope) {
    auto graph = std::make_unique<Graph>();
    graph->parent = &scope.graph();
    Scope inner(*graph, &scope);
    Importer(session_, opsets_, call_).with_caller(caller_importer_).build_graph(proto, *graph, inner);
    scope.graph().add_subgraph(node, key, std::move(graph));
  }

  Importer&& with_caller(const Importer* caller) && {
    caller_importer_ = caller;
    return std::move(*this);
  }

  Session& session_;
  const Opsets opsets_;
  const Call* call_;
  const Importer* caller_importer_ = nullptr;
  std::unordered_map<const std::string*, Value*> outputs_;
  std::map<std::string, Value*> bound_outputs_;
};

Opsets read_opsets(const onnx_io::ModelProto& model, Session& session) {
  Opsets opsets;
  for (const onnx_io::OpsetId& id : model.opset_import) {
    auto [it, added] = opsets.emplace(id.domain, id.version);
    if (!added && it->second != id.version) {
      session.note(Problem::Kind::invalid, concat("opset_import names domain '", id.domain, "' twice: versions ",
                                                  it->second, " and ", id.version));
    }
  }
  auto it = opsets.find("");
  if (it != opsets.end() && (it->second < kOldestOpset || it->second > kNewestOpset)) {
    session.note(Problem::Kind::unsupported,
                 concat("opset of the default domain: got ", it->second, ", expected ", kOldestOpset, " to ",
                        kNewestOpset, "; convert with onnx.version_converter"));
  }
  return opsets;
}

void check_size(const onnx_io::ModelProto& model, const Functions& functions) {
  if (functions.empty() || inlined_size(model.graph, functions, kMaxInlined) <= kMaxInlined) return;
  fail("number of nodes once functions are inlined: got more than ", kMaxInlined, ", expected at most that many");
}

bool is_about_one_of(const std::vector<Problem>& problems, const std::string& node) {
  return std::any_of(problems.begin(), problems.end(), [&](const Problem& p) { return p.node == node; });
}

void append(std::vector<Problem>& problems, std::vector<Problem> more) {
  problems.insert(problems.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

/// In the order of the nodes they are about, what is about none of the graph's own nodes first.
void sort_by_node(std::vector<Problem>& problems, const onnx_io::GraphProto& graph) {
  std::unordered_map<std::string_view, std::size_t> places;
  for (const onnx_io::NodeProto& node : graph.node) {
    places.emplace(node.name.empty() && !node.output.empty() ? node.output.front() : node.name, places.size() + 1);
  }
  auto place = [&](const Problem& p) {
    auto it = places.find(p.node);
    return it == places.end() || p.node.empty() ? 0 : it->second;
  };
  std::stable_sort(problems.begin(), problems.end(),
                   [&](const Problem& a, const Problem& b) { return place(a) < place(b); });
}

bool is_gradient(const onnx_io::ValueInfoProto& output) {
  return std::any_of(output.metadata_props.begin(), output.metadata_props.end(),
                     [](const auto& entry) { return entry.first == kGradientMark; });
}

/// The first outputs in a row that a file says are gradients.
void find_gradients(const std::vector<onnx_io::ValueInfoProto>& outputs, Graph& graph) {
  auto first = std::find_if(outputs.begin(), outputs.end(), is_gradient);
  graph.first_gradient = static_cast<std::size_t>(first - outputs.begin());
  graph.gradient_count = static_cast<std::size_t>(std::find_if_not(first, outputs.end(), is_gradient) - first);
  if (graph.gradient_count == 0) graph.first_gradient = 0;
}

}  // namespace

Import import_model(const onnx_io::ModelProto& model) {
  Import result;
  Session session;
  Opsets opsets = read_opsets(model, session);
  for (const onnx_io::FunctionProto& f : model.functions) {
    if (!session.functions.emplace(FunctionKey{f.domain, f.name, f.overload}, &f).second) {
      session.note(Problem::Kind::invalid, concat("function '", f.domain, ".", f.name, "' is defined twice"));
    }
  }
  try {
    check_size(model, session.functions);
    auto graph = std::make_unique<Graph>();
    Scope scope(*graph, nullptr);
    Importer(session, opsets).build_graph(model.graph, *graph, scope);
    if (session.problems.empty()) {
      for (const std::string& text : verify(*graph)) session.note(Problem::Kind::invalid, text);
    }
    std::vector<Problem> nonconforming = check_nodes(model);
    if (session.problems.empty()) {
      for (Problem& found : infer_graph(*graph)) {
        // What the standard refuses of a node may be why its rule refuses it too.
        if (!is_about_one_of(nonconforming, found.node)) session.problems.push_back(std::move(found));
      }
      append(session.problems, check_declared_types(model.graph, *graph));
      if (session.problems.empty() && nonconforming.empty()) {
        find_gradients(model.graph.output, *graph);
        graph->remove_dead_nodes();
        replace_gradient_nodes(*graph);
      }
      result.graph = std::move(graph);
    }
    append(session.problems, std::move(nonconforming));
    sort_by_node(session.problems, model.graph);
  } catch (const Unsupported& e) {
    session.note(Problem::Kind::unsupported, e.what());
  } catch (const InvalidInput& e) {
    session.note(Problem::Kind::invalid, e.what());
  }
  result.problems = std::move(session.problems);
  return result;
}

std::unique_ptr<Graph> import_as_written(const onnx_io::ModelProto& model) {
  for (const onnx_io::NodeProto& node : model.graph.node) {
    // It names a value that it differentiates in an attribute, out of reach for whoever renames values.
    if (is_gradient_node(node)) fail<Unsupported>("[Gradient '", node.name, "'] cannot be kept as it is written");
  }
  Session session;
  Opsets opsets = read_opsets(model, session);
  auto graph = std::make_unique<Graph>();
  Scope scope(*graph, nullptr);
  Importer(session, opsets).build_graph(model.graph, *graph, scope);
  throw_if_any(session.problems, model.opening);
  return graph;
}

}  // namespace backpass
