// What all parts of reading one model share: who is being read, the limits, and what has been spent of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backpass/error.hpp"
#include "onnx_io/external_data.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/wire.hpp"

namespace backpass::onnx_io {

class ReadContext {
 public:
  /// `opening` starts every message: "[file 'x.onnx'] ".
  ReadContext(std::string opening, const ReadLimits& bounds, std::shared_ptr<const void> bytes_owner,
              std::filesystem::path folder)
      : label(std::move(opening)), limits(bounds), owner(std::move(bytes_owner)), external(std::move(folder)) {}

  template <class... Args>
  [[noreturn]] void refuse(const Args&... args) const {
    fail(label, args...);
  }

  /// Starts on a message, and counts it.
  Fields open(std::string_view bytes) {
    if (++messages_ > limits.max_messages) {
      refuse("number of messages: got more than ", limits.max_messages, " (ReadLimits::max_messages)");
    }
    return Fields(bytes);
  }

  void count_node() {
    if (++nodes_ > limits.max_nodes) {
      refuse("number of nodes: got more than ", limits.max_nodes, " (ReadLimits::max_nodes)");
    }
  }

  const std::string label;
  const ReadLimits limits;
  const std::shared_ptr<const void> owner;  ///< of the bytes being read
  ExternalData external;

 private:
  friend class Nesting;
  int depth_ = 0;
  std::int64_t nodes_ = 0;
  std::int64_t messages_ = 0;
};

/// One level of graphs inside attributes or types inside types, for as long as it lives.
class Nesting {
 public:
  explicit Nesting(ReadContext& context) : context_(context) {
    if (context_.depth_ >= context_.limits.max_depth) {
      context_.refuse("nesting of graphs and types: got more than ", context_.limits.max_depth,
                      " levels (ReadLimits::max_depth)");
    }
    ++context_.depth_;
  }
  ~Nesting() { --context_.depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  ReadContext& context_;
};

}  // namespace backpass::onnx_io
