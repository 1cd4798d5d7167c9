#include "kernels/conv.hpp"

#include <algorithm>
#include <array>

#include "kernels/gemm.hpp"
#include "kernels/thread_buffer.hpp"
#include "support/half.hpp"
#include "support/parallel.hpp"

namespace backpass {

bool ConvGeometry::is_pointwise() const {
  auto all = [](const Dims& v, std::int64_t value) {
    return std::all_of(v.begin(), v.end(), [=](std::int64_t x) { return x == value; });
  };
  return all(kernel, 1) && all(stride, 1) && all(pad_begin, 0) && all(pad_end, 0);
}

namespace {

using Position = std::array<std::int64_t, kMaxSpatialAxes>;

/// One row of the column matrix: a channel seen through one position of the kernel.
struct Row {
  std::int64_t channel;
  Position offset;  ///< input position that meets output position 0, per axis
};

Row row_at(const ConvGeometry& g, std::int64_t index) {
  ensure(g.in.size() <= kMaxSpatialAxes, "convolution over ", g.in.size(), " axes");
  Row row{index / g.kernel_size(), {}};
  std::int64_t position = index % g.kernel_size();
  for (std::size_t axis = g.in.size(); axis-- > 0;) {
    row.offset[axis] = position % g.kernel[axis] * g.dilation[axis] - g.pad_begin[axis];
    position /= g.kernel[axis];
  }
  return row;
}

/// Output positions [begin, end) along the last axis whose input position lies inside.
struct Range {
  std::int64_t begin, end;
};

Range inside(const ConvGeometry& g, std::size_t axis, std::int64_t offset) {
  std::int64_t stride = g.stride[axis];
  std::int64_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
  std::int64_t last = g.in[axis] - 1 - offset;
  std::int64_t end = last < 0 ? 0 : last / stride + 1;
  begin = std::min(begin, g.out[axis]);
  return {begin, std::clamp(end, begin, g.out[axis])};
}

/// Calls line(first output element, input line or -1) for every line (stretch of the last axis) of one row.
template <class F>
void for_each_line(const ConvGeometry& g, const Row& row, const F& line) {
  std::size_t last = g.in.size() - 1;
  std::int64_t lines = g.out_size() / std::max<std::int64_t>(1, g.out[last]);
  Position at{};
  for (std::int64_t l = 0; l < lines; ++l) {
    std::int64_t from = 0;
    bool valid = true;
    for (std::size_t axis = 0; axis < last; ++axis) {
      std::int64_t p = at[axis] * g.stride[axis] + row.offset[axis];
      valid = valid && p >= 0 && p < g.in[axis];
      from = from * g.in[axis] + p;
    }
    line(l * g.out[last], valid ? from * g.in[last] : -1);
    for (std::size_t axis = last; axis-- > 0;) {
      if (++at[axis] < g.out[axis]) break;
      at[axis] = 0;
    }
  }
}

template <class T>
void column_row(const ConvGeometry& g, const T* x, T outside, const Row& row, T* to) {
  std::size_t last = g.in.size() - 1;
  const T* channel = x + row.channel * g.in_size();
  Range r = inside(g, last, row.offset[last]);
  std::int64_t stride = g.stride[last];
  std::int64_t width = g.out[last];
  for_each_line(g, row, [&](std::int64_t out, std::int64_t in) {
    T* dest = to + out;
    if (in < 0) {
      std::fill_n(dest, width, outside);
      return;
    }
    const T* source = channel + in + row.offset[last];
    std::fill_n(dest, r.begin, outside);
    if (stride == 1) {
      std::copy(source + r.begin, source + r.end, dest + r.begin);
    } else {
      for (std::int64_t i = r.begin; i < r.end; ++i) dest[i] = source[i * stride];
    }
    std::fill(dest + r.end, dest + width, outside);
  });
}

template <class T>
void fill_channels(std::int64_t batch, std::int64_t channels, std::int64_t size, const T* values, T* out) {
  parallel_for(batch * channels, grain_for(size), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::fill_n(out + i * size, size, values != nullptr ? values[i % channels] : T(0));
    }
  });
}

}  // namespace

template <class T>
void im2col(const ConvGeometry& g, const T* x, T outside, T* columns) {
  std::int64_t width = g.out_size();
  if (width == 0) return;
  parallel_for(g.column_rows(), grain_for(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) column_row(g, x, outside, row_at(g, i), columns + i * width);
  });
}

namespace {

/// Images whose columns make one matrix product long enough to be worth its start.
std::int64_t images_at_once(const ConvGeometry& g) {
  constexpr std::int64_t kLongEnough = 256;
  return std::clamp<std::int64_t>(kLongEnough / std::max<std::int64_t>(1, g.out_size()), 1, g.batch);
}

/// Columns of `count` images side by side, `step` elements apart.
template <class T>
void columns_of_images(const ConvGeometry& g, const T* x, std::int64_t step, std::int64_t count, T* columns) {
  std::int64_t size = g.out_size();
  parallel_for(g.column_rows(), grain_for(size * count), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Row row = row_at(g, i);
      for (std::int64_t n = 0; n < count; ++n) {
        column_row(g, x + n * step, T(0), row, columns + (i * count + n) * size);
      }
    }
  });
}

/// Rows of `count` matrices [rows, size] side by side, `step` elements apart.
template <class T>
void side_by_side(const T* from, std::int64_t step, std::int64_t count, std::int64_t rows, std::int64_t size, T* to) {
  parallel_for(rows, grain_for(size * count), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t n = 0; n < count; ++n) {
        std::copy_n(from + n * step + i * size, size, to + (i * count + n) * size);
      }
    }
  });
}

}  // namespace

template <class T>
void col2im(const ConvGeometry& g, const T* columns, T* x) {
  std::size_t last = g.in.size() - 1;
  std::int64_t width = g.out_size();
  if (width == 0) return;
  // Channels do not meet, so that the order of additions is that of kernel positions for any thread count.
  parallel_for(g.in_channels, grain_for(width * g.kernel_size()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * g.kernel_size(); i < end * g.kernel_size(); ++i) {
      Row row = row_at(g, i);
      Range r = inside(g, last, row.offset[last]);
      T* channel = x + row.channel * g.in_size();
      const T* from = columns + i * width;
      for_each_line(g, row, [&](std::int64_t out, std::int64_t in) {
        if (in < 0) return;
        T* dest = channel + in + row.offset[last];
        for (std::int64_t j = r.begin; j < r.end; ++j) dest[j * g.stride[last]] += from[out + j];
      });
    }
  });
}

template <class T>
void convolve(const ConvGeometry& g, const T* x, const T* w, const T* bias, T* y) {
  std::int64_t rows = g.column_rows();
  std::int64_t size = g.out_size();
  if (bias != nullptr) fill_channels(g.batch, g.groups * g.out_channels, size, bias, y);
  if (g.batch == 0 || size == 0) return;
  for (std::int64_t i = 0; i < g.batch * g.groups; ++i) {
    const T* image = x + i * g.in_channels * g.in_size();
    const T* columns = image;
    if (!g.is_pointwise()) {
      T* made = thread_buffer<T, kColumns>(rows * size);
      im2col(g, image, T(0), made);
      columns = made;
    }
    gemm<T>(false, false, g.out_channels, size, rows, T(1), w + i % g.groups * g.out_channels * rows,
            std::max<std::int64_t>(1, rows), columns, size, T(bias != nullptr ? 1 : 0), y + i * g.out_channels * size,
            size);
  }
}

template <class T>
void convolve_backward_data(const ConvGeometry& g, const T* dy, const T* w, const T* bias, T* dx) {
  std::int64_t rows = g.column_rows();
  std::int64_t size = g.out_size();
  bool direct = g.is_pointwise();
  if (!direct || bias != nullptr || size == 0) fill_channels(g.batch, g.groups * g.in_channels, g.in_size(), bias, dx);
  if (size == 0 || rows == 0) return;
  for (std::int64_t i = 0; i < g.batch * g.groups; ++i) {
    T* image = dx + i * g.in_channels * g.in_size();
    T* columns = direct ? image : thread_buffer<T, kColumns>(rows * size);
    gemm<T>(true, false, rows, size, g.out_channels, T(1), w + i % g.groups * g.out_channels * rows, rows,
            dy + i * g.out_channels * size, size, T(direct && bias != nullptr ? 1 : 0), columns, size);
    if (!direct) col2im(g, columns, image);
  }
}

template <class T>
void convolve_backward_weights(const ConvGeometry& g, const T* x, const T* dy, T* dw) {
  std::int64_t rows = g.column_rows();
  std::int64_t size = g.out_size();
  if (g.batch == 0 || size == 0 || rows == 0) {
    std::fill_n(dw, g.groups * g.out_channels * rows, T(0));
    return;
  }
  std::int64_t x_step = g.groups * g.in_channels * g.in_size();
  std::int64_t dy_step = g.groups * g.out_channels * size;
  std::int64_t most = images_at_once(g);
  for (std::int64_t n = 0; n < g.batch; n += most) {
    std::int64_t count = std::min(most, g.batch - n);
    for (std::int64_t group = 0; group < g.groups; ++group) {
      const T* columns = x + n * x_step + group * g.in_channels * g.in_size();
      const T* from = dy + n * dy_step + group * g.out_channels * size;
      if (!g.is_pointwise() || count > 1) {
        T* made = thread_buffer<T, kColumns>((rows + g.out_channels) * count * size);
        columns_of_images(g, columns, x_step, count, made);
        columns = made;
        if (count > 1) {
          T* gathered = made + rows * count * size;
          side_by_side(from, dy_step, count, g.out_channels, size, gathered);
          from = gathered;
        }
      }
      gemm<T>(false, true, g.out_channels, rows, count * size, T(1), from, count * size, columns, count * size,
              T(n == 0 ? 0 : 1), dw + group * g.out_channels * rows, rows);
    }
  }
}

template <class T>
void sum_channels(std::int64_t batch, std::int64_t channels, std::int64_t size, const T* dy, T* db) {
  parallel_for(channels, grain_for(batch * size), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) {
      double part[4] = {0, 0, 0, 0};  // so that additions overlap
      for (std::int64_t n = 0; n < batch; ++n) {
        const T* from = dy + (n * channels + c) * size;
        std::int64_t i = 0;
        for (; i + 4 <= size; i += 4) {
          for (int j = 0; j < 4; ++j) part[j] += from[i + j];
        }
        for (; i < size; ++i) part[0] += from[i];
      }
      db[c] = static_cast<T>((part[0] + part[1]) + (part[2] + part[3]));
    }
  });
}

#define BACKPASS_INSTANTIATE(T)                                                                   \
  template void im2col<T>(const ConvGeometry&, const T*, T, T*);                                  \
  template void col2im<T>(const ConvGeometry&, const T*, T*);                                     \
  template void convolve<T>(const ConvGeometry&, const T*, const T*, const T*, T*);               \
  template void convolve_backward_data<T>(const ConvGeometry&, const T*, const T*, const T*, T*); \
  template void convolve_backward_weights<T>(const ConvGeometry&, const T*, const T*, T*);        \
  template void sum_channels<T>(std::int64_t, std::int64_t, std::int64_t, const T*, T*);
BACKPASS_INSTANTIATE(float)
BACKPASS_INSTANTIATE(double)
#undef BACKPASS_INSTANTIATE
template void sum_channels(std::int64_t, std::int64_t, std::int64_t, const BFloat16*, BFloat16*);
template void im2col<std::uint32_t>(const ConvGeometry&, const std::uint32_t*, std::uint32_t, std::uint32_t*);

}  // namespace backpass
