#include "runtime/arena_need.hpp"

#include <algorithm>
#include <set>

#include "plan/peak.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

class Shaping {
 public:
  explicit Shaping(const Sizes& sizes) {
    for (const auto& [name, size] : sizes) {
      if (size < 0) problems_ += concat("\nsize ", printable(name), ": got ", size, ", expected 0 or more");
      known_.emplace(name, Dim(size));
      unused_.insert(name);
    }
  }

  RuntimeValue shaped(const Value& input) {
    if (!input.type.is_tensor() || !input.type.shape || input.type.dtype == DType::string) {
      problems_ += concat("\ninput '", input.name, "' is ", input.type.str(),
                          ": expected a tensor of known rank; use plan() of a session with its value");
      return {};
    }
    Dims dims;
    for (const Dim& d : *input.type.shape) dims.push_back(number(input, d));
    return problems_.empty() ? RuntimeValue(Tensor(input.type.dtype, dims, nullptr, nullptr)) : RuntimeValue();
  }

  void throw_if_any() const {
    std::string problems = problems_;
    for (const std::string& name : unused_) problems += concat("\nsize ", printable(name), " is of no input");
    if (!problems.empty()) fail(problems.substr(1));
  }

 private:
  std::int64_t number(const Value& input, const Dim& d) {
    std::erase_if(unused_, [&](const std::string& name) { return d.mentions(name); });
    const Dim found = d.substituted(known_);
    if (found.is_known()) return found.value();
    problems_ += concat("\ninput '", input.name, "': ", d.str(), " is not known; give its size");
    return 0;
  }

  std::map<std::string, Dim> known_;
  std::set<std::string> unused_;
  std::string problems_;
};

bool is_open(const Value* input) {
  return !input->type.is_tensor() || !input->type.shape || !is_known(*input->type.shape);
}

}  // namespace

ArenaNeed arena_need(Executable& executable, std::span<Value* const> inputs, const Sizes& sizes) {
  Peak peak = find_peak(executable.program());
  ArenaNeed need{peak.str(), std::move(peak.unknown), std::nullopt};
  if (sizes.empty() && std::any_of(inputs.begin(), inputs.end(), is_open)) return need;
  Shaping shaping(sizes);
  std::vector<RuntimeValue> values;
  for (const Value* input : inputs) values.push_back(shaping.shaped(*input));
  shaping.throw_if_any();
  const std::shared_ptr<const Binding> last = at_most(executable.binding_for(values)).back();
  if (last->rest == nullptr) need.bytes = static_cast<std::int64_t>(last->arena_bytes());  // else there is no bound
  return need;
}

}  // namespace backpass
