#include "passes/manager.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "support/split_names.hpp"

namespace backpass {
namespace {

template <class E>
bool overlap(E a, E b) {
  return (static_cast<int>(a) & static_cast<int>(b)) != 0;
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::string names_of(std::span<const Pass> passes, Graphs graphs) {
  std::string text;
  for (const Pass& pass : passes) {
    if (overlap(pass.graphs, graphs)) text += concat(text.empty() ? "" : ", ", pass.name);
  }
  return text;
}

}  // namespace

PassManager::PassManager(const PassOptions& options, std::span<const Pass> passes)
    : passes_(passes), verify_(options.verify || variable("BACKPASS_VERIFY_PASSES") == "1") {
  auto add = [&](std::set<std::string, std::less<>>& to, const std::vector<std::string>& names, std::string_view from) {
    for (const std::string& name : names) require_known(name, from);
    to.insert(names.begin(), names.end());
  };
  add(disabled_, options.disabled, "disabled_passes");
  add(disabled_, split_names(variable("BACKPASS_DISABLE_PASSES")), "BACKPASS_DISABLE_PASSES");
  add(chosen_, options.chosen, "chosen");
  add(chosen_, split_names(variable("BACKPASS_CHOOSE_PASSES")), "BACKPASS_CHOOSE_PASSES");
}

void PassManager::require_known(const std::string& name, std::string_view given_by) const {
  const bool known = std::any_of(passes_.begin(), passes_.end(), [&](const Pass& p) { return p.name == name; });
  if (!known) fail(given_by, ": got '", name, "', expected names among ", names_of(passes_, Graphs::any));
}

bool PassManager::is_wanted(const Pass& pass) const {
  return disabled_.count(pass.name) == 0 && (!pass.by_data || chosen_.count(pass.name) != 0);
}

void PassManager::run(Graph& graph, Side side) {
  std::vector<const Pass*> chosen;
  for (const Pass& pass : passes_) {
    if (overlap(pass.graphs, Graphs::plans) && overlap(pass.side, side)) chosen.push_back(&pass);
  }
  first_side_ = reports_.size();
  run_all(graph, chosen);
}

void PassManager::lower(Graph& graph) {
  std::vector<const Pass*> chosen;
  for (const Pass& pass : passes_) {
    if (overlap(pass.graphs, Graphs::lowered)) chosen.push_back(&pass);
  }
  run_all(graph, chosen);
}

void PassManager::run(Graph& graph, std::span<const std::string> names) {
  std::vector<const Pass*> chosen;
  for (const Pass& pass : passes_) {
    const bool wanted = std::find(names.begin(), names.end(), pass.name) != names.end();
    if (overlap(pass.graphs, Graphs::files) && wanted) chosen.push_back(&pass);
  }
  for (const std::string& name : names) {
    const bool found = std::any_of(chosen.begin(), chosen.end(), [&](const Pass* p) { return p->name == name; });
    if (!found) fail("passes: got '", name, "', expected names among ", names_of(passes_, Graphs::files));
  }
  run_all(graph, chosen);
}

void PassManager::run_all(Graph& graph, std::span<const Pass* const> chosen) {
  for (Node* node : graph.nodes()) {
    for (auto& [key, sub] : node->subgraphs) run_all(*sub, chosen);
  }
  for (const Pass* pass : chosen) {
    if (is_wanted(*pass)) run_one(graph, *pass);
  }
}

void PassManager::run_one(Graph& graph, const Pass& pass) {
  const std::size_t before = reports_.size();
  const auto begin = std::chrono::steady_clock::now();
  pass.run(graph, reports_);
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  for (std::size_t i = before; i < reports_.size(); ++i) reports_[i].pass = pass.name;
  if (pass.side == Side::both) merge_sides(before);
  auto time = std::find_if(times_.begin(), times_.end(), [&](const PassTime& t) { return t.pass == pass.name; });
  if (time == times_.end()) time = times_.insert(times_.end(), {std::string(pass.name), 0});
  time->seconds += spent.count();
  if (!verify_) return;
  const std::vector<std::string> broken = verify(graph);
  ensure(broken.empty(), "pass ", pass.name, " left graph '", graph.name,
         "' broken: ", broken.empty() ? "" : broken.front(), "; BACKPASS_DISABLE_PASSES=", pass.name,
         " runs without it");
}

/// Of a pass that runs on both sides, one report about a node: that something was done, else the first one, which is
/// about the graph as it came.
void PassManager::merge_sides(std::size_t now) {
  auto is_refusal = [](const Report& r) { return r.bytes_saved == "0"; };
  for (std::size_t i = now; i < reports_.size();) {
    const auto end = reports_.begin() + static_cast<std::ptrdiff_t>(first_side_);
    const auto old = std::find_if(reports_.begin(), end, [&](const Report& r) {
      return r.pass == reports_[i].pass && r.node == reports_[i].node && is_refusal(r);
    });
    if (old == end) {
      ++i;
      continue;
    }
    if (!is_refusal(reports_[i])) *old = reports_[i];
    reports_.erase(reports_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::vector<std::string> PassManager::lines() const {
  std::vector<std::string> lines;
  for (const Report& report : reports_) lines.push_back(report.what);
  return lines;
}

}  // namespace backpass
