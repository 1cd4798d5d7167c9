// Before a loop whose iterations do not depend on each other: the compiler may use vectors without checking for
// overlap.
#pragma once

#if defined(__clang__)
#define BACKPASS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define BACKPASS_INDEPENDENT _Pragma("GCC ivdep")
#else
#define BACKPASS_INDEPENDENT
#endif
