// What the rewriting passes did to a graph, and how long they took.
#pragma once

#include <string>

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

/// Time spent in one pass, bodies of control flow included.
struct PassTime {
  std::string pass;
  double seconds = 0;
};

}  // namespace backpass
