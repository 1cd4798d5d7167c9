// What can go wrong, by who has to act. Every message reads `[Op 'node'] what was wrong: got ..., expected ...; do
// this`.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace backpass {

/// Base of everything Backpass throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The model, file or value handed in is wrong: the caller can mend it.
class InvalidInput : public Error {
 public:
  using Error::Error;
};

/// The request is legal but Backpass cannot do it (yet): the message names what and where.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// A broken promise inside Backpass. Never the caller's fault.
class InternalBug : public Error {
 public:
  using Error::Error;
};

/// Joins its arguments with operator<<: `concat("got ", n, ", expected ", m)`.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

template <class E = InvalidInput, class... Args>
[[noreturn]] void fail(const Args&... args) {
  throw E(concat(args...));
}

/// Checks what only a bug in Backpass can break.
template <class... Args>
void ensure(bool condition, const Args&... args) {
  if (!condition) throw InternalBug(concat("internal error: ", args...));
}

}  // namespace backpass
