// What the rewriting passes did to a graph, and how long they took.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace backpass {

/// One change. Savings are those of one run: a number, or an expression over symbols ("4*batch*768"); empty where they
/// are not known.
struct Report {
  std::string pass = {};              ///< "fuse_tiles"
  std::string node = {};              ///< label of the node it is about: "[Add 'sum']"
  std::string what = {};              ///< a line for people, which is what rewrites() shows
  std::string why = {};               ///< what makes it right, or worth it
  std::string operations_saved = {};  ///< on elements
  std::string bytes_saved = {};  ///< of results that are not written, or not kept, any more; below 0 where more are
};

/// How many rows of a batch a rewriting pass leaves, at one place of the graph.
struct RowDensity {
  std::string pass = {};    ///< "skip_padding"
  std::string node = {};    ///< label of the node that finds them
  std::string input = {};   ///< of the model that says which: "attention_mask"
  std::int64_t needed = 0;  ///< rows that something depends on: with a label, or seen by one that is needed
  std::int64_t total = 0;
  std::optional<std::int64_t> ignored = {};     ///< the label that stands for none
  std::vector<std::int64_t> per_sequence = {};  ///< of `needed`, where rows are tokens: in a DataReport

  double share() const { return total == 0 ? 1 : static_cast<double>(needed) / static_cast<double>(total); }
};

/// What steps take with some of the passes that data decide on.
struct ChoiceReport {
  std::vector<std::string> passes = {};  ///< none: the graph without any
  std::int64_t runs = 0;                 ///< batches it was chosen for
  double operations = 0;                 ///< of its latest step; 0 where not known
  std::int64_t bytes = 0;                ///< of its arena
};

/// How a session decided by the data of its batches.
struct DataReport {
  std::vector<RowDensity> densities = {};  ///< of the latest batch
  std::vector<std::string> chosen = {};    ///< passes, for it
  std::vector<ChoiceReport> choices = {};
  double build_seconds = 0;  ///< spent on the graphs so far
};

/// Time spent in one pass, bodies of control flow included.
struct PassTime {
  std::string pass;
  double seconds = 0;
};

}  // namespace backpass
