#include "training/data_choice.hpp"

#include <algorithm>
#include <deque>
#include <set>
#include <unordered_set>

#include "graph/builder.hpp"
#include "graph/clone.hpp"
#include "graph/op.hpp"
#include "plan/program.hpp"
#include "runtime/call_scope.hpp"
#include "runtime/executable.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;

/// What finds the rows that a pass leaves.
struct RowFinder {
  std::string_view op;
  std::string_view pass;
};

// In the order of the passes: a later one counts on what those before it leave out.
constexpr RowFinder kFinders[] = {{"LabelledRows", "skip_ignored_labels"}, {"NeededRows", "skip_padding"}};

const RowFinder* finder_of(const Node& node) {
  if (node.domain != "backpass") return nullptr;
  const auto* found = std::find_if(std::begin(kFinders), std::end(kFinders), [&](auto& f) { return f.op == node.op; });
  return found == std::end(kFinders) ? nullptr : found;
}

bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

enum class Through : std::uint8_t { everything, contents };

/// Calls f(value) for these and for what they are computed from, the nearest first, until it returns true. Through
/// `contents`, not for what they only have the extents of.
template <class F>
void search_upwards(const std::vector<Value*>& from, Through through, F&& f) {
  std::deque<Value*> waiting(from.begin(), from.end());
  std::unordered_set<const Value*> seen;
  for (; !waiting.empty(); waiting.pop_front()) {
    const Value* v = waiting.front();
    if (v == nullptr || v->constant || !seen.insert(v).second) continue;
    if (f(*v)) return;
    if (v->producer == nullptr || (through == Through::contents && v->producer->op == "Shape")) continue;
    for_each_read(*v->producer, [&](Value* read) { waiting.push_back(read); });
  }
}

/// Whether a node costs more than a look may, or must not run twice.
bool is_too_much(const Node& node) {
  return node.def == nullptr || node.def->flops != nullptr || node.def->is_random || node.def->is_pause ||
         !node.subgraphs.empty();
}

/// What keeps rows from being counted before the step; null: nothing.
const Node* obstacle(const Node& finder) {
  const Node* found = nullptr;
  search_upwards(finder.inputs, Through::everything, [&](const Value& v) {
    if (v.producer != nullptr && is_too_much(*v.producer)) found = v.producer;
    return found != nullptr;
  });
  return found;
}

/// The nearest input of the graph that one of these is computed from, which is no parameter; empty: none.
std::string nearest_input(const Graph& graph, const std::vector<Value*>& from) {
  auto is_among = [](const auto& values, const Value& v) {
    return std::find(values.begin(), values.end(), &v) != values.end();
  };
  std::string name;
  search_upwards(from, Through::contents, [&](const Value& v) {
    if (is_among(graph.inputs, v) && !is_among(graph.steady_inputs, v)) name = v.name;
    return !name.empty();
  });
  return name;
}

/// The input that says which rows are needed: a mask rather than what asks for some.
std::string deciding_input(const Graph& graph, const Node& finder) {
  const auto before = static_cast<std::size_t>(finder.op == "NeededRows" ? 1 + finder.attr_int("asked", 0) : 0);
  std::vector<Value*> masks;
  for (std::size_t i = before; i < finder.inputs.size(); ++i) masks.push_back(finder.inputs[i]);
  const std::string name = nearest_input(graph, masks);
  return name.empty() ? nearest_input(graph, finder.inputs) : name;
}

std::span<const std::int64_t> numbers(const Tensor& t) {
  return {t.as<std::int64_t>(), static_cast<std::size_t>(t.size())};
}

/// The names of passes that data decide on and that are not switched off.
Names open_passes(const SessionOptions& options, std::span<const Pass> passes) {
  Names names;
  for (const Pass& pass : passes) {
    if (pass.by_data && !contains(options.disabled_passes, pass.name)) names.emplace_back(pass.name);
  }
  return names;
}

/// What need not run to find rows: all that comes after the last pass of `open`.
Names later_passes(const Names& open, std::span<const Pass> passes) {
  const auto last = std::find_if(passes.rbegin(), passes.rend(), [&](const Pass& p) { return contains(open, p.name); });
  Names names;
  for (auto it = passes.rbegin(); it != last; ++it) names.emplace_back(it->name);
  return names;
}

}  // namespace

struct DataLooker::Impl {
  /// Where rows are left out.
  struct Spot {
    RowDensity density;  // without numbers
    Value* rows;
    Value* extents;  // whose product, or whose one element, is the number of all rows
  };

  SessionOptions options;
  Names order;  // of passes
  Reports reports;
  std::vector<Spot> spots;
  std::vector<std::size_t> inputs;  // of the forward graph, that are read
  std::unique_ptr<Graph> graph;     // of what finds rows
  std::unique_ptr<Program> program;
  std::unique_ptr<Executable> executable;

  Impl(const Graph& forward, const SessionOptions& o, std::span<const Pass> passes) : options(o) {
    const Names open = open_passes(options, passes);
    if (open.empty() || !options.optimize || options.sparse_threshold == 0) return;
    Names disabled = options.disabled_passes;
    const Names later = later_passes(open, passes);
    disabled.insert(disabled.end(), later.begin(), later.end());
    PassManager manager({disabled, options.verify_passes, open}, passes);
    std::unique_ptr<Graph> rewritten = clone(forward).graph;
    manager.run(*rewritten, Side::before);
    find_spots(forward, *rewritten, open);
    report_refusals(manager.reports(), open);
    if (!spots.empty()) make_program(std::move(rewritten), passes);
  }

  void find_spots(const Graph& forward, Graph& rewritten, const Names& open) {
    std::set<std::string, std::less<>> known;  // found by a graph that is made so already
    for (const Node* node : forward.nodes()) {
      if (finder_of(*node) != nullptr) known.insert(node->outputs.front()->name);
    }
    const std::vector<Node*> nodes = rewritten.nodes();
    for (const Node* node : nodes) {
      const RowFinder* finder = finder_of(*node);
      if (finder == nullptr || !contains(open, finder->pass)) continue;
      if (known.count(node->outputs.front()->name) != 0) continue;
      if (const Node* heavy = obstacle(*node)) {
        reports.push_back(not_looked_at(*node, *finder, *heavy));
        continue;
      }
      Value* extents = node->inputs.front();
      if (finder->op == "LabelledRows") extents = Builder(rewritten, nullptr, "look").op("Size", {extents});
      RowDensity density{.pass = std::string(finder->pass), .node = node->label()};
      density.input = deciding_input(rewritten, *node);
      if (node->has_attribute("ignore_index")) density.ignored = node->attr_int("ignore_index");
      spots.push_back({std::move(density), node->outputs.front(), extents});
    }
    for (const RowFinder& finder : kFinders) order.emplace_back(finder.pass);
  }

  static Report not_looked_at(const Node& node, const RowFinder& finder, const Node& heavy) {
    Report report;
    report.pass = finder.pass;
    report.node = node.label();
    report.what = concat(node.label(), " is not looked at: which rows are needed follows from ", heavy.label());
    report.why = "looking at a batch must cost next to nothing";
    report.bytes_saved = "0";
    return report;
  }

  /// What the passes say where they found nothing to do.
  void report_refusals(const Reports& all, const Names& open) {
    for (const Report& report : all) {
      const bool has_spot =
          std::any_of(spots.begin(), spots.end(), [&](const Spot& s) { return s.density.pass == report.pass; });
      if (contains(open, report.pass) && !has_spot) reports.push_back(report);
    }
  }

  void make_program(std::unique_ptr<Graph> rewritten, std::span<const Pass> passes) {
    Graph& g = *rewritten;
    g.outputs.clear();
    for (const Spot& spot : spots) {
      g.outputs.push_back(spot.rows);
      g.outputs.push_back(spot.extents);
    }
    g.steady_inputs.clear();
    g.remove_dead_nodes();
    std::vector<Value*> read;
    for (std::size_t i = 0; i < g.inputs.size(); ++i) {
      if (g.use_count(g.inputs[i]) == 0) continue;
      read.push_back(g.inputs[i]);
      inputs.push_back(i);
    }
    g.inputs = std::move(read);
    PassManager manager({options.disabled_passes, options.verify_passes}, passes);
    manager.run(g, Side::after);
    graph = lower(g, manager);
    program = backpass::make_program(*graph);
    executable = std::make_unique<Executable>(*program, options.binding_cache, nullptr);
  }

  DataChoice count(std::span<const RuntimeValue> values) const {
    CallScope call(options);
    std::vector<RuntimeValue> read;
    for (std::size_t i : inputs) read.push_back(values[i]);
    const std::vector<RuntimeValue> found = executable->run(read);
    DataChoice choice;
    for (std::size_t s = 0; s < spots.size(); ++s) {
      choice.rows.push_back(found[2 * s].tensor);
      choice.extents.push_back(found[2 * s + 1].tensor);
      RowDensity& density = choice.densities.emplace_back(spots[s].density);
      density.needed = choice.rows.back().size();
      density.total = 1;
      for (std::int64_t extent : numbers(choice.extents.back())) density.total *= extent;
    }
    return choice;
  }

  /// A pass that pays brings those before it, on whose work its own count of rows is based.
  Names worthwhile(const std::vector<RowDensity>& densities) const {
    Names chosen;
    bool is_needed = false;
    for (auto pass = order.rbegin(); pass != order.rend(); ++pass) {
      bool is_there = false;
      for (const RowDensity& d : densities) {
        if (d.pass != *pass) continue;
        is_there = true;
        is_needed = is_needed || d.share() < options.sparse_threshold;
      }
      if (is_there && is_needed) chosen.insert(chosen.begin(), *pass);
    }
    return chosen;
  }
};

DataLooker::DataLooker(const Graph& forward, const SessionOptions& options, std::span<const Pass> passes)
    : impl_(std::make_unique<Impl>(forward, options, passes)) {}

DataLooker::~DataLooker() = default;

bool DataLooker::has_choice() const { return !impl_->spots.empty(); }

DataChoice DataLooker::look(std::span<const RuntimeValue> inputs) const {
  if (!has_choice()) return {};
  DataChoice choice = impl_->count(inputs);
  choice.passes = impl_->worthwhile(choice.densities);
  return choice;
}

std::vector<RowDensity> with_sequences(const DataChoice& choice) {
  std::vector<RowDensity> densities = choice.densities;
  for (std::size_t s = 0; s < densities.size(); ++s) {
    const std::span<const std::int64_t> extents = numbers(choice.extents[s]);
    if (extents.size() < 2 || densities[s].total == 0) continue;
    densities[s].per_sequence.resize(static_cast<std::size_t>(extents[0]));
    for (std::int64_t row : numbers(choice.rows[s])) {
      ++densities[s].per_sequence[static_cast<std::size_t>(row / extents[1])];
    }
  }
  return densities;
}

const std::vector<Report>& DataLooker::reports() const { return impl_->reports; }

}  // namespace backpass
