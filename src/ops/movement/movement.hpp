// Shared by operators that move elements: packed types by way of bytes, integer contents read at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/op.hpp"

namespace backpass::movement {

inline constexpr DTypeSet any_type = types::movable | types::sub_bytes | DTypeSet{DType::float6e2m3, DType::float6e3m2};

/// Prepares a kernel that was written for whole-byte elements. When `data` tensors (inputs and outputs of the
/// operator's main type) are packed sub-byte types, they are unpacked to bytes in scratch memory before it runs and
/// packed after.
Kernel through_bytes(PrepareContext& context, Kernel (*prepare)(PrepareContext&));

/// Contents of an int32 or int64 tensor in memory.
std::vector<std::int64_t> read_ints(DType dtype, const void* data, std::int64_t count);

/// Output 0 has the elements of input 0, in order.
Kernel prepare_copy(PrepareContext& context);

/// Keeps contents of a small integer output: only types that hold extents, and no more than inference follows.
void set_ints(InferContext& context, std::size_t output, std::vector<Dim> values);

/// Contents of input i if it is an integer tensor of the given rank (0 or 1) whose contents inference knows.
std::optional<std::vector<Dim>> ints_of_rank(const InferContext& context, std::size_t i, std::size_t rank);

/// Contents of input i, which says extents, axes or positions: fails unless it holds int32 or int64 in rank 0 or 1.
/// nullopt when they are not known.
std::optional<std::vector<Dim>> index_list(const InferContext& context, std::size_t i, std::string_view name);

/// All of them if all are numbers.
std::optional<std::vector<std::int64_t>> numbers(const std::optional<std::vector<Dim>>& values);

/// Fails unless the dtypes of two inputs agree.
void require_same_dtype(const InferContext& context, std::size_t a, std::size_t b);

/// Fails unless input i is int32 or int64.
void require_index(const InferContext& context, std::size_t i);

/// Turns an attribute of old opsets into a constant int64 input (1-D; 0-D for a single number) at position `input`.
/// Leaves the node alone when the attribute is absent.
void ints_attribute_to_input(Builder& builder, Node& node, std::string_view attribute, std::size_t input);
void int_attribute_to_input(Builder& builder, Node& node, std::string_view attribute, std::size_t input);

}  // namespace backpass::movement
