// What QuantizeLinear and DequantizeLinear share: how the shape of the scale says which elements it belongs to.
#pragma once

#include "graph/op.hpp"
#include "ops/quantization/quantize.hpp"

namespace backpass {

/// Checks shapes and types of x, scale and zero point against each other (as far as they are known).
void check_quantization(InferContext& c);

/// The element type named by an attribute: `otherwise` when it is absent or 0. Fails when it is not in `allowed`.
DType dtype_attribute(InferContext& c, const char* key, DTypeSet allowed, DType otherwise);

ScaleLayout scale_layout(const PrepareContext& c);

/// Everything but `precision`, filled from the node.
QuantizeSpec quantize_spec(const PrepareContext& c);

namespace types {
inline constexpr DTypeSet quantized{
    DType::int8,           DType::uint8,      DType::int16,          DType::uint16,     DType::float8e4m3fn,
    DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz, DType::uint4,      DType::int4,
    DType::float4e2m1,     DType::uint2,      DType::int2,           DType::float6e2m3, DType::float6e3m2};
inline constexpr DTypeSet short_floats = halves | DTypeSet{DType::float32};
}  // namespace types

}  // namespace backpass
