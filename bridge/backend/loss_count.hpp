// Answered writes that may have been lost before a flush made them durable.
#pragma once

#include <atomic>
#include <cstdint>

namespace rnbd {

/// How often that has happened to storage whose loss can be noticed and which goes on afterwards.
/// Each writer's next flush must then fail once.
///
/// Threads: any.
class LossCount {
 public:
  void add() { ++happened_; }
  std::uint64_t happened() const { return happened_; }
  /// A flush has failed because of the first `count`. Who opens the storage later need not be told
  /// of these.
  void tell(std::uint64_t count) {
    std::uint64_t known = told_;
    while (known < count && !told_.compare_exchange_weak(known, count)) {
    }
  }
  std::uint64_t told() const { return told_; }

 private:
  std::atomic<std::uint64_t> happened_{0};
  std::atomic<std::uint64_t> told_{0};
};

/// What one writer knows of it.
///
/// Threads: the writer's; the count outlives it.
class LossWitness {
 public:
  /// Null: storage that loses nothing.
  explicit LossWitness(LossCount* count)
      : count_{count}, known_{count != nullptr ? count->told() : 0} {}

  /// A flush must fail, because something was lost since the last one that failed. True once.
  bool learns() {
    const std::uint64_t now = count_ != nullptr ? count_->happened() : 0;
    if (now == known_) return false;
    known_ = now;
    count_->tell(now);
    return true;
  }

 private:
  LossCount* count_;
  std::uint64_t known_;
};

}  // namespace rnbd
