// What a processor is told about arithmetic, thread by thread: how to round, and what to do with numbers too small for
// a normal exponent. Exact arithmetic on those takes some processors 150 cycles for each vector that holds one, and
// made products of small networks five times as long: gradients of saturated softmaxes are full of them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace backpass {

class FloatMode {
 public:
  static FloatMode of_this_thread() { return FloatMode(read() & ~kFlags); }

  /// Numbers below the smallest normal one (2^-126, 2^-1022) are taken for zero, as operands and as results.
  FloatMode with_tiny_as_zero() const { return FloatMode(bits_ | kTinyAsZero); }
  void apply() const { write(bits_ | (read() & kFlags)); }
  bool operator==(const FloatMode&) const = default;

 private:
#if defined(__x86_64__)
  using Bits = unsigned;
  static constexpr Bits kTinyAsZero = 0x8040;  // results, operands
  static constexpr Bits kFlags = 0x3f;         // what has happened so far
  static Bits read() { return _mm_getcsr(); }
  static void write(Bits bits) { _mm_setcsr(bits); }
#elif defined(__aarch64__)
  using Bits = std::uint64_t;
  static constexpr Bits kTinyAsZero = Bits{1} << 24;
  static constexpr Bits kFlags = 0;
  static Bits read() {
    Bits bits = 0;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void write(Bits bits) { asm volatile("msr fpcr, %0" : : "r"(bits) : "memory"); }
#else
  using Bits = unsigned;
  static constexpr Bits kTinyAsZero = 0;
  static constexpr Bits kFlags = 0;
  static Bits read() { return 0; }
  static void write(Bits) {}
#endif

  explicit FloatMode(Bits bits) : bits_(bits) {}

  Bits bits_;
};

/// While it lives, this thread calculates so. Scopes nest.
class FloatScope {
 public:
  explicit FloatScope(FloatMode mode) : before_(FloatMode::of_this_thread()), changes_(mode != before_) {
    if (changes_) mode.apply();
  }
  ~FloatScope() {
    if (changes_) before_.apply();
  }
  FloatScope(const FloatScope&) = delete;
  FloatScope& operator=(const FloatScope&) = delete;

 private:
  FloatMode before_;
  bool changes_;
};

/// The scope of matrix products and attention.
class TinyAsZero : FloatScope {
 public:
  TinyAsZero() : FloatScope(FloatMode::of_this_thread().with_tiny_as_zero()) {}
};

}  // namespace backpass
