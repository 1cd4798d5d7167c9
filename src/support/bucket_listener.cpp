#include "support/bucket_listener.hpp"

#include <utility>

namespace backpass {
namespace {

BucketListener*& of_thread() {
  static thread_local BucketListener* current = nullptr;
  return current;
}

}  // namespace

BucketListener* bucket_listener() { return of_thread(); }

BucketScope::BucketScope(BucketListener* listener) : before_(std::exchange(of_thread(), listener)) {}

BucketScope::~BucketScope() { of_thread() = before_; }

}  // namespace backpass
