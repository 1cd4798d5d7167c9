#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings.hpp"
#include "graph/op.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

const char* how_it_runs(const OpDef& def) {
  if (def.expand != nullptr) return "expand";
  if (def.tile != nullptr) return "tile";
  return def.prepare != nullptr ? "kernel" : "compute";
}

const char* how_it_is_differentiated(const OpDef& def) {
  if (def.is_flat) return "flat";
  if (def.fused_gradient != nullptr) return "fused";
  if (def.gradient != nullptr) return "rule";
  return def.expand != nullptr ? "expansion" : "none";
}

nb::list all() {
  nb::list result;
  for (const OpDef* def : all_ops()) {
    nb::dict row;
    row["name"] = std::string(def->name);
    row["domain"] = std::string(def->domain);
    row["since"] = def->since;
    row["types"] = def->types.str();
    row["doc"] = std::string(def->doc);
    row["runs_by"] = how_it_runs(*def);
    row["gradient"] = how_it_is_differentiated(*def);
    result.append(row);
  }
  return result;
}

}  // namespace

void bind_ops(nb::module_& m) { m.def("ops", &all, "One dict per registered operator."); }
