// Whose fault an error is.
#pragma once

#include <new>
#include <stdexcept>
#include <string_view>

#include "backpass/cancel.hpp"
#include "graph/graph.hpp"

namespace backpass {

/// Runs f. What it throws about input that is wrong, not supported or too large, or because it was cancelled, without
/// saying where, gets this node's label.
template <class F>
decltype(auto) blaming(const Node& node, F&& f) {
  try {
    return f();
  } catch (const InvalidInput& e) {
    if (std::string_view(e.what()).starts_with('[')) throw;
    fail(node.label(), " ", e.what());
  } catch (const Unsupported& e) {
    if (std::string_view(e.what()).starts_with('[')) throw;
    fail<Unsupported>(node.label(), " ", e.what());
  } catch (const Cancelled& e) {
    if (std::string_view(e.what()).starts_with('[')) throw;
    fail<Cancelled>(node.label(), " ", e.what());
  } catch (const std::bad_alloc&) {
    fail(node.label(), " out of memory; use smaller inputs");
  } catch (const std::length_error& e) {  // a container longer than any address: same reason
    fail(node.label(), " out of memory (", e.what(), "); use smaller inputs");
  }
}

}  // namespace backpass
