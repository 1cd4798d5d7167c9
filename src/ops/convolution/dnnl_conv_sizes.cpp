#include "ops/convolution/dnnl_conv_sizes.hpp"

namespace backpass {

dnnl::memory::desc plain_layout(const dnnl::memory::dims& dims) {
  dnnl::memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return {dims, dnnl::memory::data_type::f32, strides};
}

dnnl::memory::desc any_layout(const dnnl::memory::dims& dims) {
  return {dims, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any};
}

DnnlConvSizes::DnnlConvSizes(const ConvGeometry& g)
    : x{g.batch, g.groups * g.in_channels},
      y{g.batch, g.groups * g.out_channels},
      bias{g.groups * g.out_channels},
      stride(g.stride),
      dilation(g.dilation),
      pad_begin(g.pad_begin),
      pad_end(g.pad_end) {
  if (g.groups > 1) {
    w = {g.groups, g.out_channels, g.in_channels};
  } else {
    w = {g.out_channels, g.in_channels};
  }
  x.insert(x.end(), g.in.begin(), g.in.end());
  y.insert(y.end(), g.out.begin(), g.out.end());
  w.insert(w.end(), g.kernel.begin(), g.kernel.end());
  for (auto& d : dilation) d -= 1;
  // oneDNN demands that padding and extents agree exactly; what a stride leaves over is padding not needed.
  for (std::size_t i = 0; i < g.in.size(); ++i) {
    std::int64_t reach = g.dilation[i] * (g.kernel[i] - 1) + 1;
    pad_end[i] = (g.out[i] - 1) * g.stride[i] + reach - g.in[i] - g.pad_begin[i];
  }
}

}  // namespace backpass
