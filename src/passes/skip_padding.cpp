#include <algorithm>

#include "passes/list.hpp"
#include "passes/pack_rows.hpp"

namespace backpass {
namespace {

/// Sequences that some attention has keys of.
std::vector<RowSpace> spaces_of(Graph& graph) {
  std::vector<RowSpace> spaces;
  for (const AttentionSite& site : attention_sites(graph)) {
    if (site.may_hold_heads_in_batch() || (site.masks.empty() && !site.is_causal)) continue;
    const RowSpace space{site.batch(), site.keys()};
    const bool is_known = std::any_of(spaces.begin(), spaces.end(), [&](const RowSpace& s) {
      return s.batch == space.batch && s.length == space.length;
    });
    if (!is_known && !space.count().is(1)) spaces.push_back(space);
  }
  return spaces;
}

/// What the rows of a space are found from.
class Question {
 public:
  Question(Graph& graph, RowNeeds& needs, RowPacker& packer, const RowSpace& space)
      : graph_(graph), needs_(needs), packer_(packer), space_(space), set_(needs.set_of(space)) {}

  Value* ask() {
    Builder b(graph_, nullptr, "needed");
    ExtentValues extents(graph_);
    std::vector<Value*> inputs{extents.get(b, Shape{space_.batch, space_.length})};
    const std::vector<Value*> asked = asked_places();
    inputs.insert(inputs.end(), asked.begin(), asked.end());
    add_masks();
    inputs.insert(inputs.end(), masks_.begin(), masks_.end());
    return b.op("NeededRows", inputs,
                {{"asked", static_cast<std::int64_t>(asked.size())},
                 {"causal", causal_},
                 {"outside", outside_},
                 {"unseen", unseen_}},
                "backpass");
  }

 private:
  std::vector<Value*> asked_places() {
    std::vector<Value*> asked;
    auto add = [&](Value* places) {
      if (places != nullptr && std::find(asked.begin(), asked.end(), places) == asked.end()) asked.push_back(places);
    };
    for (const RowNeeds::Selection& found : needs_.selections()) {
      if (found.of_data.set == set_ && packer_.is_moved(found)) add(packer_.places_of(found));
    }
    for (const RowNeeds::Site& site : needs_.sites()) {
      const AttentionSite& a = site.attention;
      if (a.is_ragged && site.keys == set_ && is_self(a)) add(a.result->input(3));
    }
    return asked;
  }

  void add_masks() {
    for (RowNeeds::Site& site : needs_.sites()) {
      if (site.keys == set_) add_mask(site.attention);
    }
  }

  void add_mask(AttentionSite& a) {
    Value* mask = mask_of(graph_, a);
    const std::int64_t causal = a.is_causal ? 1 : 0, outside = is_self(a) ? 0 : 1, unseen = a.unseen_sees_all ? 1 : 0;
    for (std::size_t i = 0; i < masks_.size(); ++i) {
      if (masks_[i] == mask && causal_[i] == causal && outside_[i] == outside && unseen_[i] == unseen) return;
    }
    masks_.push_back(mask);
    causal_.push_back(causal), outside_.push_back(outside), unseen_.push_back(unseen);
  }

  bool is_self(const AttentionSite& a) const { return a.queries() == space_.length; }

  Graph& graph_;
  RowNeeds& needs_;
  RowPacker& packer_;
  const RowSpace& space_;
  const RowSet* set_;
  std::vector<Value*> masks_;
  std::vector<std::int64_t> causal_, outside_, unseen_;
};

bool has_keys(const RowNeeds& needs, const RowSpace& space) {
  return std::any_of(needs.sites().begin(), needs.sites().end(),
                     [&](const RowNeeds::Site& site) { return site.keys == needs.set_of(space); });
}

std::string described(const RowSpace& space) { return "[" + space.batch.str() + "," + space.length.str() + "]"; }

}  // namespace

void skip_padding(Graph& graph, Reports& reports) {
  if (graph.parent != nullptr) return;
  free_shapes(graph);
  std::vector<RowSpace> spaces = spaces_of(graph), useful;
  {
    const RowNeeds needs(graph, spaces);
    for (const RowSpace& space : needs.spaces()) {
      if (has_keys(needs, space)) {
        useful.push_back(space);
        continue;
      }
      reports.push_back({.node = described(space),
                         .what = concat("padding of sequences ", described(space), " stays"),
                         .why = concat("all rows are needed: ", needs.obstacle(space)),
                         .bytes_saved = "0"});
    }
  }
  if (useful.empty()) return;
  RowNeeds needs(graph, useful);
  RowPacker packer(graph, needs);
  for (const RowSpace& space : needs.spaces()) {
    if (has_keys(needs, space)) packer.set_places(needs.set_of(space), Question(graph, needs, packer, space).ask());
  }
  packer.run();
  for (const auto& [set, saving] : packer.savings()) {
    reports.push_back({.node = described(*set->space),
                       .what = concat("left out rows of sequences ", described(*set->space),
                                      " that nothing needed sees: ", saving.nodes, " nodes compute the others"),
                       .why = "no query that reaches a result may attend to them",
                       .operations_saved = saving.operations.str(),
                       .bytes_saved = saving.bytes.str()});
  }
}

}  // namespace backpass
