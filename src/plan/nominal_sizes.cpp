#include "plan/nominal_sizes.hpp"

#include <algorithm>

#include "graph/op.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kNominalExtent = 64;
constexpr std::int64_t kMostElements = std::int64_t{1} << 36;

}  // namespace

NominalSizes::NominalSizes(const Graph& graph) {
  for (const Value* v : graph.inputs) {
    if (!v->type.shape) continue;
    for (const Dim& d : *v->type.shape) {
      if (std::optional<std::string> name = d.symbol_name()) nominal_.emplace(*name, Dim(kNominalExtent));
    }
  }
}

std::optional<std::int64_t> NominalSizes::bytes(const Value& v) const {
  if (!v.type.is_tensor() || !v.type.shape) return std::nullopt;
  if (v.type.dtype == DType::undefined || v.type.dtype == DType::string) return std::nullopt;
  const std::optional<Dim> count = unless_it_overflows([&] { return product(*v.type.shape).substituted(nominal_); });
  if (!count || !count->is_known() || count->value() < 0 || count->value() > kMostElements) return std::nullopt;
  return static_cast<std::int64_t>(byte_size(v.type.dtype, count->value()));
}

std::optional<std::int64_t> NominalSizes::operations(const Node& node) const {
  if (node.def == nullptr || node.def->flops == nullptr) return std::nullopt;
  auto has_rank = [](const Value* v) { return v == nullptr || (v->type.is_tensor() && v->type.shape); };
  if (!std::all_of(node.inputs.begin(), node.inputs.end(), has_rank)) return std::nullopt;
  const std::optional<Dim> count = unless_it_overflows([&] { return node.def->flops(node).substituted(nominal_); });
  return count && count->is_known() ? std::optional(count->value()) : std::nullopt;
}

}  // namespace backpass
