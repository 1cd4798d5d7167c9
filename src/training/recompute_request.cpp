#include "training/recompute_request.hpp"

#include <algorithm>
#include <charconv>

#include "graph/op.hpp"
#include "plan/boundaries.hpp"
#include "plan/recompute.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool read_number(const std::string& text, int& number) {
  const char* end = text.data() + text.size();
  return !text.empty() && std::from_chars(text.data(), end, number).ptr == end;
}

/// "Gelu+Dropout+:1:-1", as ONNX Runtime writes it.
RecomputeRequest::Operators read_operators(const std::string& text, int& mode) {
  const std::vector<std::string> parts = split(text, ':');
  RecomputeRequest::Operators found;
  const bool is_read = parts.size() == 3 && read_number(parts[1], mode) && read_number(parts[2], found.count) &&
                       mode >= 0 && mode <= 2 && found.count >= -1;
  if (!is_read) {
    fail("recompute: got ", printable(text),
         ", expected 'cheap', 'blocks', or operators with 0, 1 or 2 and a number: 'Gelu+Dropout:1:-1'");
  }
  for (std::string& name : split(parts[0], '+')) {
    if (!name.empty()) found.names.push_back(std::move(name));
  }
  return found;
}

/// Values that backward reads and that are made of others that it reads, or that are always there, without products.
void mark_cheap(const Program& program, Outline& outline) {
  const Fates all = keep_all(outline);
  std::vector<char> is_cheap(outline.values.size(), 0);
  for (std::size_t s = 0; s < outline.steps.size(); ++s) {
    const Outline::Step& step = outline.steps[s];
    if (!step.is_forward || !step.is_repeatable || program.steps[s].node->def->flops != nullptr) continue;
    const bool has_all = std::all_of(step.inputs.begin(), step.inputs.end(), [&](int v) {
      const auto root = static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root);
      return !outline.values[root].is_choosable || all[root] == Fate::kept || is_cheap[root] != 0;
    });
    if (!has_all) continue;
    for (int v : step.outputs) {
      const auto root = static_cast<std::size_t>(outline.values[static_cast<std::size_t>(v)].root);
      is_cheap[root] = 1;
      if (all[root] == Fate::kept) outline.values[root].is_unwanted = true;
    }
  }
}

void mark_all_but_boundaries(Outline& outline) {
  for (Outline::Value& value : outline.values) value.is_unwanted = value.is_choosable;
  for (const Boundary& boundary : find_boundaries(outline)) {
    for (int v : boundary.values) outline.values[static_cast<std::size_t>(v)].is_unwanted = false;
  }
}

void mark_operators(const RecomputeRequest::Operators& operators, const Program& program, Outline& outline) {
  const Fates all = keep_all(outline);
  int left = operators.count < 0 ? static_cast<int>(all.size()) : operators.count;
  for (std::size_t v = 0; v < all.size() && left > 0; ++v) {
    if (all[v] != Fate::kept) continue;
    const std::string& op = program.steps[static_cast<std::size_t>(outline.values[v].producer)].node->op;
    if (std::find(operators.names.begin(), operators.names.end(), op) == operators.names.end()) continue;
    outline.values[v].is_unwanted = true;
    --left;
  }
}

}  // namespace

RecomputeRequest read_recompute(std::span<const std::string> texts) {
  RecomputeRequest request;
  for (const std::string& text : texts) {
    if (text == "cheap") {
      request.is_cheap = true;
    } else if (text == "blocks") {
      request.is_blocks = true;
    } else {
      int mode = 0;
      RecomputeRequest::Operators operators = read_operators(text, mode);
      if (mode != 0) request.operators.push_back(std::move(operators));
    }
  }
  return request;
}

Fates mark_unwanted(const RecomputeRequest& request, const Program& program, Outline& outline) {
  if (request.is_blocks) mark_all_but_boundaries(outline);
  if (request.is_cheap) mark_cheap(program, outline);
  for (const RecomputeRequest::Operators& operators : request.operators) mark_operators(operators, program, outline);
  Fates fates = keep_all(outline);
  if (!request.is_blocks) return fates;
  for (std::size_t v = 0; v < fates.size(); ++v) {
    if (outline.values[v].is_choosable && !outline.values[v].is_unwanted) fates[v] = Fate::kept;
  }
  return fates;
}

}  // namespace backpass
