// Who is told, while a training step runs, that gradients are complete.
#pragma once

#include <cstddef>
#include <span>

namespace backpass {

class BucketListener {
 public:
  BucketListener() = default;
  BucketListener(const BucketListener&) = delete;
  BucketListener& operator=(const BucketListener&) = delete;
  virtual ~BucketListener() = default;

  /// All gradients of a bucket are complete, where these addresses say, and nobody in the step reads them any more.
  virtual void complete(std::size_t bucket, std::span<const void* const> gradients) = 0;
};

/// That of this thread's step; null: nobody is told.
BucketListener* bucket_listener();

class BucketScope {
 public:
  explicit BucketScope(BucketListener* listener);
  BucketScope(const BucketScope&) = delete;
  BucketScope& operator=(const BucketScope&) = delete;
  ~BucketScope();

 private:
  BucketListener* before_;
};

}  // namespace backpass
