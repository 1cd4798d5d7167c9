#include "ops/signal/fft.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

namespace backpass {
namespace {

// Larger prime factors cost more as sums than as a convolution.
constexpr std::size_t kMaxRadix = 31;

std::complex<double> root(std::size_t k, std::size_t n) {
  const double angle = 2 * std::numbers::pi * static_cast<double>(k % n) / static_cast<double>(n);
  return {std::cos(angle), std::sin(angle)};
}

// Products of complex numbers without the checks for infinities that operator* makes.
template <class T>
std::complex<T> times(const std::complex<T>& a, const std::complex<T>& b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

template <class T>
std::complex<T> times_i(const std::complex<T>& a) {
  return {-a.imag(), a.real()};
}

// Factors from the shortest passes on: fours, a two in front, then odd primes.
std::vector<std::size_t> factorized(std::size_t n) {
  std::vector<std::size_t> factors;
  for (; n % 4 == 0; n /= 4) factors.push_back(4);
  if (n % 2 == 0) {
    factors.insert(factors.begin(), 2);
    n /= 2;
  }
  for (std::size_t p = 3; p * p <= n; p += 2)
    for (; n % p == 0; n /= p) factors.push_back(p);
  if (n > 1) factors.push_back(n);
  return factors;
}

template <class T>
void dft_4(const std::complex<T>* a, std::complex<T>* b, bool inverse) {
  const std::complex<T> t1 = a[0] - a[2], t2 = a[0] + a[2], t3 = a[1] + a[3];
  const std::complex<T> t4 = inverse ? times_i(a[1] - a[3]) : times_i(a[3] - a[1]);
  b[0] = t2 + t3, b[2] = t2 - t3, b[1] = t1 + t4, b[3] = t1 - t4;
}

// An odd length: sums of mirrored inputs weigh cosines, differences weigh sines.
template <class T>
void dft_odd(const std::complex<T>* a, std::complex<T>* b, std::size_t n, bool inverse,
             const std::vector<std::complex<T>>& roots) {
  const std::size_t half = n / 2;
  std::complex<T> sum[kMaxRadix], difference[kMaxRadix];
  b[0] = a[0];
  for (std::size_t j = 1; j <= half; ++j) {
    sum[j] = a[j] + a[n - j];
    difference[j] = a[j] - a[n - j];
    b[0] += sum[j];
  }
  const std::size_t stride = roots.size() / n;
  const T sign = inverse ? T(1) : T(-1);
  for (std::size_t k = 1; k <= half; ++k) {
    std::complex<T> even = a[0];
    std::complex<T> odd = 0;
    for (std::size_t j = 1; j <= half; ++j) {
      const std::complex<T>& w = roots[j * k % n * stride];
      even += std::complex<T>(w.real() * sum[j].real(), w.real() * sum[j].imag());
      odd += std::complex<T>(w.imag() * difference[j].real(), w.imag() * difference[j].imag());
    }
    b[k] = even + sign * times_i(odd), b[n - k] = even - sign * times_i(odd);
  }
}

template <class T>
void small_dft(const std::complex<T>* a, std::complex<T>* b, std::size_t n, bool inverse,
               const std::vector<std::complex<T>>& roots) {
  if (n == 2) {
    b[0] = a[0] + a[1], b[1] = a[0] - a[1];
  } else if (n == 4) {
    dft_4(a, b, inverse);
  } else {
    dft_odd(a, b, n, inverse, roots);
  }
}

}  // namespace

template <class T>
Fft<T>::Fft(std::size_t length) : length_(length) {
  if (length < 2) return;
  factors_ = factorized(length);
  if (*std::max_element(factors_.begin(), factors_.end()) <= kMaxRadix) {
    for (std::size_t k = 0; k < length; ++k) roots_.emplace_back(root(k, length));
    return;
  }
  const std::size_t size = std::bit_ceil(2 * length - 1);
  inner_ = std::make_unique<Fft<double>>(size);
  kernel_.resize(size);
  for (std::size_t k = 0; k < length; ++k) {
    chirp_.push_back(std::conj(root(k * k % (2 * length), 2 * length)));
    kernel_[k] = kernel_[(size - k) % size] = std::conj(chirp_[k]);
  }
  inner_->transform(kernel_.data(), false);
}

template <class T>
void Fft<T>::transform(Complex* x, bool inverse) const {
  if (length_ < 2) return;
  if (inner_) {
    chirp(x, inverse);
  } else {
    thread_local std::vector<Complex> buffer;
    if (buffer.size() < length_) buffer.resize(length_);
    Complex* from = x;
    Complex* to = buffer.data();
    std::size_t done = 1;
    for (std::size_t radix : factors_) {
      pass(radix, done, inverse, from, to);
      std::swap(from, to);
      done *= radix;
    }
    if (from != x) std::copy_n(from, length_, x);
  }
  if (!inverse) return;
  const T scale = static_cast<T>(1 / static_cast<double>(length_));
  for (std::size_t i = 0; i < length_; ++i) x[i] *= scale;
}

// One factor: `done` is the product of those before it. Results land in order, so nothing has to be permuted.
template <class T>
void Fft<T>::pass(std::size_t radix, std::size_t done, bool inverse, const Complex* in, Complex* out) const {
  const std::size_t rest = length_ / (done * radix);
  Complex a[kMaxRadix], b[kMaxRadix];
  for (std::size_t k = 0; k < done; ++k) {
    for (std::size_t i = 0; i < rest; ++i) {
      for (std::size_t j = 0; j < radix; ++j) a[j] = in[i + rest * (j + radix * k)];
      small_dft(a, b, radix, inverse, roots_);
      out[i + rest * k] = b[0];
      for (std::size_t u = 1; u < radix; ++u) {
        const Complex& w = roots_[u * done * i];
        out[i + rest * (k + done * u)] = i == 0 ? b[u] : times(b[u], inverse ? w : std::conj(w));
      }
    }
  }
}

template <class T>
void Fft<T>::chirp(Complex* x, bool inverse) const {
  thread_local std::vector<std::complex<double>> buffer;
  const std::size_t size = inner_->length();
  buffer.assign(size, {});
  auto mirrored = [&](const std::complex<double>& z) { return inverse ? std::conj(z) : z; };
  for (std::size_t k = 0; k < length_; ++k) buffer[k] = times(mirrored(std::complex<double>(x[k])), chirp_[k]);
  inner_->transform(buffer.data(), false);
  for (std::size_t k = 0; k < size; ++k) buffer[k] = times(buffer[k], kernel_[k]);
  inner_->transform(buffer.data(), true);
  for (std::size_t k = 0; k < length_; ++k) x[k] = Complex(mirrored(times(buffer[k], chirp_[k])));
}

template class Fft<float>;
template class Fft<double>;

}  // namespace backpass
