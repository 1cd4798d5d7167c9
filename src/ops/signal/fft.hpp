// Discrete Fourier transforms of any length.
#pragma once

#include <complex>
#include <cstddef>
#include <memory>
#include <vector>

namespace backpass {

/// Tables for one length; one object serves any number of threads. T is float or double.
template <class T>
class Fft {
 public:
  explicit Fft(std::size_t length);

  std::size_t length() const { return length_; }

  /// x[k] = sum over n of x[n] exp(-2 pi i k n / length), in place. The inverse has the other sign and divides by
  /// length.
  void transform(std::complex<T>* x, bool inverse) const;

 private:
  using Complex = std::complex<T>;

  void pass(std::size_t radix, std::size_t done, bool inverse, const Complex* in, Complex* out) const;
  void chirp(Complex* x, bool inverse) const;

  std::size_t length_;
  std::vector<std::size_t> factors_;
  std::vector<Complex> roots_;  ///< exp(2 pi i k / length)
  // Lengths with a large prime factor become a convolution of a power of two, in double precision (Bluestein).
  std::unique_ptr<Fft<double>> inner_;
  std::vector<std::complex<double>> chirp_, kernel_;
};

}  // namespace backpass
