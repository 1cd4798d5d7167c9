// Runs passes: in the order of the list, timed, each with its reports, each switchable by name, verified on request.
#pragma once

#include <set>

#include "passes/pass.hpp"

namespace backpass {

struct PassOptions {
  std::vector<std::string> disabled;     ///< names of passes that do not run
  bool verify = false;                   ///< look at every invariant of the graph after each pass
  std::vector<std::string> chosen = {};  ///< names of those passes to run whose worth depends on data
};

class PassManager {
 public:
  /// The environment comes on top: BACKPASS_DISABLE_PASSES=name,name, BACKPASS_CHOOSE_PASSES=name,name and
  /// BACKPASS_VERIFY_PASSES=1. InvalidInput for names that no pass has.
  PassManager(const PassOptions& options, std::span<const Pass> passes);

  /// Rewrites a graph that is to be planned, bodies of control flow first. Side::both is for graphs that are not
  /// differentiated. InternalBug naming the pass that leaves a broken graph, if those are looked for.
  void run(Graph& graph, Side side);

  /// The same for a plan's own copy of such a graph, with what is to be done there.
  void lower(Graph& graph);

  /// The same with these passes of the list, for a graph that goes on as a file. InvalidInput for names of passes that
  /// cannot be had there.
  void run(Graph& graph, std::span<const std::string> names);

  /// Of all graphs so far.
  const Reports& reports() const { return reports_; }
  const std::vector<PassTime>& times() const { return times_; }
  /// One line per report.
  std::vector<std::string> lines() const;

 private:
  void run_all(Graph& graph, std::span<const Pass* const> chosen);
  void run_one(Graph& graph, const Pass& pass);
  void merge_sides(std::size_t now);
  void require_known(const std::string& name, std::string_view given_by) const;
  bool is_wanted(const Pass& pass) const;

  std::span<const Pass> passes_;
  std::set<std::string, std::less<>> disabled_;
  std::set<std::string, std::less<>> chosen_;
  bool verify_;
  Reports reports_;
  std::size_t first_side_ = 0;  // reports before this run
  std::vector<PassTime> times_;
};

}  // namespace backpass
