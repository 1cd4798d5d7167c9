// What the ONNX standard says of its operators, version by version: the table that tools/standard_operators.py writes
// from the schemas of the onnx package, and the questions that are asked of it. Operators of other domains, and those
// that runtimes have added to the standard's own, are not in it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backpass/dtype.hpp"
#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

/// One version of one operator: in force from opset `since` until the next.
struct StandardOperator {
  std::string_view domain;
  std::string_view name;
  std::int64_t since = 0;
  bool is_deprecated = false;
  int min_inputs = 0;
  /// Per input, separated by blanks: 1 (must be there), ? (may be omitted) or * (any number from here on); then the
  /// element types it may have, in hexadecimal (bit n is DType n; 0 where it need not be a tensor).
  std::string_view inputs = "";
  int min_outputs = 0;
  std::string_view outputs = "";  ///< the same
  std::string_view attributes =
      "";  ///< name:kind (f i s t g x p; plural ones as capitals), with ! where it is required
};

/// Oldest first; empty when the standard has no such operator.
std::span<const StandardOperator> standard_versions(std::string_view domain, std::string_view name);

/// All in which a node differs from what the standard says of its operator at this opset, but for element types:
/// `what was wrong: got ..., expected ...`. Nothing for operators that are not the standard's.
std::vector<std::string> standard_problems(const NodeProto& node, std::int64_t opset);

/// The oldest opset, from `opset` on, in which the standard has the node as it is, with inputs and outputs of these
/// element types (undefined where they are no tensors or not known); `opset` when it never does.
std::int64_t oldest_standard_opset(const NodeProto& node, const std::vector<DType>& inputs,
                                   const std::vector<DType>& outputs, std::int64_t opset);

}  // namespace backpass::onnx_io
