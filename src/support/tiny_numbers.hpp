// Numbers too small for a normal exponent, as gradients of saturated softmaxes are: exact arithmetic on them takes some
// processors 150 cycles for each vector that holds one, and made products of small networks five times as long.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace backpass {

/// While it lives, this thread takes numbers below the smallest normal one (2^-126, 2^-1022) for zero, as operands and
/// as results. Scopes nest.
class TinyAsZero {
 public:
  TinyAsZero() : before_(control()) {
    if ((before_ & kBits) != kBits) set_control(before_ | kBits);
  }
  ~TinyAsZero() {
    if ((before_ & kBits) != kBits) set_control(before_);
  }
  TinyAsZero(const TinyAsZero&) = delete;
  TinyAsZero& operator=(const TinyAsZero&) = delete;

 private:
#if defined(__x86_64__)
  using Control = unsigned;
  static constexpr Control kBits = 0x8040;  // results, operands
  static Control control() { return _mm_getcsr(); }
  static void set_control(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
  using Control = std::uint64_t;
  static constexpr Control kBits = Control{1} << 24;
  static Control control() {
    Control value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { asm volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#else
  using Control = unsigned;
  static constexpr Control kBits = 0;
  static Control control() { return 0; }
  static void set_control(Control) {}
#endif

  Control before_;
};

}  // namespace backpass
