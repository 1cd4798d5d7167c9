#include "ops/custom/custom_registration.hpp"

#include <map>
#include <mutex>

#include "graph/registry.hpp"
#include "ops/custom/custom_operator.hpp"

namespace backpass {
namespace {

using Key = std::pair<std::string, std::string>;

/// Everything users said under one name.
struct Entry {
  std::shared_ptr<const CustomOperator> op;
  std::shared_ptr<const CustomDerivative> derivative;
};

struct Entries {
  std::mutex mutex;
  std::map<Key, Entry> by_name;
};

Entries& entries() {
  static auto* all = new Entries;  // outlives the graphs of static objects
  return *all;
}

std::string full_name(std::string_view domain, std::string_view name) {
  return concat(domain.empty() ? "ai.onnx" : domain, ".", name);
}

void check_name(std::string_view domain, std::string_view name) {
  if (name.empty()) fail("operator to register: got no name");
  if (domain == "backpass")
    fail("operator ", full_name(domain, name), ": got the domain of Backpass itself; use another");
}

std::shared_ptr<const CustomDerivative> make_derivative(const std::string& domain, const std::string& name,
                                                        GradientRule rule, BackwardFunction backward) {
  if (rule != nullptr && backward != nullptr) {
    fail("gradient of ", full_name(domain, name), ": got a rule and a function, expected one of them");
  }
  auto derivative = std::make_shared<CustomDerivative>();
  derivative->rule = std::move(rule);
  derivative->backward = std::move(backward);
  derivative->grad_domain = domain.empty() ? "backpass.custom" : domain;
  derivative->grad_op = name + "Grad";
  return derivative;
}

std::shared_ptr<CustomDef> named(std::string domain, std::string name) {
  auto def = std::make_shared<CustomDef>();
  def->own_name = std::move(name);
  def->own_domain = std::move(domain);
  return def;
}

void put(const std::shared_ptr<CustomDef>& def) {
  def->name = def->own_name;
  def->domain = def->own_domain;
  override_op(def->own_domain, def->own_name, def);
}

/// The operator that computes a derivative by numbers.
void put_grad_operator(const std::shared_ptr<const CustomDerivative>& derivative) {
  if (derivative == nullptr || derivative->backward == nullptr) return;
  auto def = named(derivative->grad_domain, derivative->grad_op);
  def->doc = "the gradient of an operator of a user";
  def->inputs = {0, -1};
  def->outputs = {0, -1};
  def->infer = infer_custom_grad;
  def->compute = compute_custom_grad;
  def->derivative = derivative;
  put(def);
}

void check_grad_name(const CustomDerivative& derivative, const std::map<Key, Entry>& taken) {
  if (derivative.backward == nullptr) return;
  const bool is_taken = find_built_in(derivative.grad_domain, derivative.grad_op) != nullptr ||
                        taken.count({derivative.grad_domain, derivative.grad_op}) != 0;
  if (is_taken) {
    fail("gradient by numbers: its operator ", full_name(derivative.grad_domain, derivative.grad_op),
         " exists already; give the operator another name");
  }
}

void put_operator(const CustomOperator& op, const std::shared_ptr<const CustomDerivative>& derivative) {
  auto def = named(op.domain, op.name);
  def->since = op.since;
  def->doc = "an operator of a user";
  def->inputs = {op.inputs.min, op.inputs.max};
  def->outputs = {op.outputs.min, op.outputs.max};
  def->infer = infer_custom;
  def->type_rule = op.types;
  def->forward = op.forward;
  def->kernel = op.kernel;
  (op.kernel != nullptr ? void(def->prepare = prepare_custom) : void(def->compute = compute_custom));
  def->is_random = !op.is_pure;
  def->derivative = derivative;
  if (derivative != nullptr) def->gradient = differentiate_custom;
  put(def);
}

/// A built-in operator under another gradient.
void put_built_in(const OpDef& built_in, const std::shared_ptr<const CustomDerivative>& derivative) {
  auto def = named(std::string(built_in.domain), std::string(built_in.name));
  static_cast<OpDef&>(*def) = built_in;
  def->gradient = differentiate_custom;
  def->fused_gradient = nullptr;
  def->is_flat = false;
  def->derivative = derivative;
  put(def);
}

/// Makes what find_op gives agree with an entry.
void install(const Key& key, const Entry& entry) {
  const OpDef* built_in = find_built_in(key.first, key.second);
  put_grad_operator(entry.derivative);
  if (entry.op != nullptr) {
    put_operator(*entry.op, entry.derivative);
  } else if (built_in != nullptr && entry.derivative != nullptr) {
    put_built_in(*built_in, entry.derivative);
  } else {
    override_op(key.first, key.second, nullptr);
  }
}

void check_operator(const CustomOperator& op) {
  const std::string name = full_name(op.domain, op.name);
  check_name(op.domain, op.name);
  if (op.domain.empty()) fail("operator ", name, ": got the standard's domain; use one of your own");
  if (find_built_in(op.domain, op.name) != nullptr) {
    fail("operator ", name,
         ": Backpass has one of that name; use another, or register_gradient to change its gradient");
  }
  if ((op.forward != nullptr) == (op.kernel != nullptr)) {
    fail("operator ", name, ": expected exactly one of forward and kernel");
  }
  if (op.since < 1) fail("operator ", name, " since: got ", op.since, ", expected an opset version from 1 on");
  auto is_range = [](const OperandCount& c) { return c.min >= 0 && (c.max < 0 || c.max >= c.min); };
  if (!is_range(op.inputs) || !is_range(op.outputs) || op.outputs.max == 0) {
    fail("operator ", name, " number of inputs and outputs: got ", op.inputs.min, " to ", op.inputs.max, " and ",
         op.outputs.min, " to ", op.outputs.max, ", expected ranges (-1: without end)");
  }
}

bool has_gradient(const OpDef& def) { return def.gradient != nullptr || def.fused_gradient != nullptr || def.is_flat; }

}  // namespace

void register_operator(CustomOperator op) {
  check_operator(op);
  Key key{op.domain, op.name};
  std::shared_ptr<const CustomDerivative> derivative;
  if (op.gradient != nullptr || op.backward != nullptr) {
    derivative = make_derivative(op.domain, op.name, op.gradient, op.backward);
  }
  std::lock_guard lock(entries().mutex);
  auto& by_name = entries().by_name;
  auto it = by_name.find(key);
  if (it != by_name.end() && it->second.op != nullptr && !op.replace) {
    fail("operator ", full_name(op.domain, op.name),
         ": one of that name is registered; replace = true takes its place");
  }
  if (derivative != nullptr) check_grad_name(*derivative, by_name);
  // A gradient that was registered by itself stays.
  if (derivative == nullptr && it != by_name.end()) derivative = it->second.derivative;
  Entry entry{std::make_shared<const CustomOperator>(std::move(op)), std::move(derivative)};
  install(key, entry);
  by_name.insert_or_assign(key, std::move(entry));
}

void register_gradient(CustomGradient gradient) {
  check_name(gradient.domain, gradient.name);
  const std::string name = full_name(gradient.domain, gradient.name);
  if (gradient.gradient == nullptr && gradient.backward == nullptr) fail("gradient of ", name, ": got none");
  auto derivative =
      make_derivative(gradient.domain, gradient.name, std::move(gradient.gradient), std::move(gradient.backward));
  const OpDef* built_in = find_built_in(gradient.domain, gradient.name);
  if (built_in != nullptr && built_in->expand != nullptr) {
    fail<Unsupported>("gradient of ", name, ": the operator is taken apart while a model is read; register gradients ",
                      "for its parts, or use a function of the model");
  }
  Key key{gradient.domain, gradient.name};
  std::lock_guard lock(entries().mutex);
  auto& by_name = entries().by_name;
  auto it = by_name.find(key);
  const bool is_registered = it != by_name.end() && it->second.derivative != nullptr;
  if ((is_registered || (built_in != nullptr && has_gradient(*built_in))) && !gradient.replace) {
    fail("gradient of ", name, ": there is one already; replace = true takes its place");
  }
  check_grad_name(*derivative, by_name);
  Entry entry = it == by_name.end() ? Entry() : it->second;
  entry.derivative = std::move(derivative);
  install(key, entry);
  by_name.insert_or_assign(key, std::move(entry));
}

void unregister(std::string_view domain, std::string_view name) {
  Key key{domain, name};
  std::lock_guard lock(entries().mutex);
  auto it = entries().by_name.find(key);
  if (it == entries().by_name.end())
    fail("operator ", full_name(domain, name), ": got a name nothing is registered under");
  const std::shared_ptr<const CustomDerivative> derivative = it->second.derivative;
  if (derivative != nullptr && derivative->backward != nullptr) {
    override_op(derivative->grad_domain, derivative->grad_op, nullptr);
  }
  install(key, {});
  entries().by_name.erase(it);
}

std::shared_ptr<const CustomDerivative> find_function_gradient(std::string_view domain, std::string_view name) {
  std::lock_guard lock(entries().mutex);
  auto it = entries().by_name.find(Key{domain, name});
  return it == entries().by_name.end() ? nullptr : it->second.derivative;
}

}  // namespace backpass
