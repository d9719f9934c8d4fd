// SPDX-License-Identifier: BSD-3-Clause
// Counters of the data path: operations, bytes, errors, and the duration of a sample of them. Each
// meter has one writer, so counting needs no lock, no locked instruction and no shared cache line.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace rnbd {

/// A number that only grows.
///
/// Threads: add() one; get() any.
class Counter {
 public:
  void add(std::uint64_t n = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// Latencies by powers of two. Bucket i counts those of at most 2^i us that are in no lower bucket;
/// the last one counts the rest.
///
/// Threads: add() one; the rest any.
class LatencyHistogram {
 public:
  static constexpr std::size_t kBuckets = 28;

  static std::size_t bucket_of(std::uint64_t nanoseconds) {
    const std::uint64_t us = (nanoseconds + 999) / 1000;
    const std::size_t bucket = us <= 1 ? 0 : static_cast<std::size_t>(std::bit_width(us - 1));
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  void add(std::uint64_t nanoseconds) {
    buckets_[bucket_of(nanoseconds)].add();
    nanoseconds_.add(nanoseconds);
  }
  std::uint64_t bucket(std::size_t index) const { return buckets_[index].get(); }
  std::uint64_t nanoseconds() const { return nanoseconds_.get(); }

 private:
  std::array<Counter, kBuckets> buckets_;
  Counter nanoseconds_;
};

enum class MeteredOperation : std::uint8_t {
  read,
  write,
  flush,
  discard,
  write_zeroes,
  other,  ///< block status, read-ahead
};
inline constexpr std::size_t kMeteredOperations = 6;

/// "read", "write_zeroes"; a value of the label `op`.
const char* to_string(MeteredOperation operation);

/// Errors with a counter of their own. The last place counts all others.
inline constexpr std::size_t kMeteredErrors = 10;
/// "EIO", ..., "other".
const char* name_of_metered_error(std::size_t place);
std::size_t place_of_metered_error(int error);

/// A failure of storage, in one word of memory.
struct StorageFailure {
  std::int64_t at = 0;  ///< Units: seconds since 1970. 0: there was none
  MeteredOperation operation = MeteredOperation::other;
  int error = 0;  ///< errno: EIO or ENOSPC

  std::uint64_t packed() const {
    return static_cast<std::uint64_t>(at) << 24 | static_cast<std::uint64_t>(operation) << 16 |
           static_cast<std::uint16_t>(error);
  }
  static StorageFailure unpacked(std::uint64_t word) {
    return {static_cast<std::int64_t>(word >> 24), static_cast<MeteredOperation>(word >> 16 & 0xFF),
            static_cast<int>(word & 0xFFFF)};
  }
};

/// Counts the work of one thread with an export or a device. It is aligned, so that no two meters
/// share a cache line.
///
/// Threads: begin(), time_next() and end() one; the rest any.
class alignas(64) Meter {
 public:
  /// One operation in this many is timed, beginning with the first of each kind: a look at the
  /// clock costs as much as the rest of the counting.
  static constexpr std::uint64_t kTimedOneIn = 8;

  struct Operations {
    Counter begun;
    Counter ended;
    Counter bytes;  ///< of those that succeeded
    LatencyHistogram latency;
  };

  /// True: the caller must time this operation.
  bool begin(MeteredOperation operation) {
    Counter& begun = at(operation).begun;
    begun.add();
    return begun.get() % kTimedOneIn == 1;
  }
  /// Units: bytes; nanoseconds, 0 = it was not timed. `error` is an errno, 0 = success.
  void end(MeteredOperation operation, std::uint64_t bytes, int error, std::uint64_t nanoseconds) {
    Operations& counts = at(operation);
    counts.ended.add();
    if (error == 0) {
      counts.bytes.add(bytes);
    } else {
      failed(operation, error);
    }
    if (nanoseconds != 0) counts.latency.add(nanoseconds);
  }

  const Operations& operations(MeteredOperation operation) const {
    return operations_[static_cast<std::size_t>(operation)];
  }
  std::uint64_t errors(std::size_t place) const { return errors_[place].get(); }
  /// The newest one.
  StorageFailure last_failure() const {
    return StorageFailure::unpacked(last_failure_.load(std::memory_order_relaxed));
  }

 private:
  void failed(MeteredOperation operation, int error);
  Operations& at(MeteredOperation operation) {
    return operations_[static_cast<std::size_t>(operation)];
  }

  std::array<Operations, kMeteredOperations> operations_;
  std::array<Counter, kMeteredErrors> errors_;
  std::atomic<std::uint64_t> last_failure_{0};  ///< packed
};

/// The sum of several meters.
struct MeterReading {
  struct Operations {
    std::uint64_t ended = 0;
    std::uint64_t bytes = 0;
    std::uint64_t timed = 0;        ///< operations in `buckets`
    std::uint64_t nanoseconds = 0;  ///< total time of these
    std::array<std::uint64_t, LatencyHistogram::kBuckets> buckets{};
  };
  std::array<Operations, kMeteredOperations> operations{};
  std::array<std::uint64_t, kMeteredErrors> errors{};
  std::uint64_t in_flight = 0;
  StorageFailure last_failure{};

  void add(const Meter& meter);
  const Operations& of(MeteredOperation operation) const {
    return operations[static_cast<std::size_t>(operation)];
  }
};

/// All meters of a program, by the name of their export or device. Meters outlive their users, so
/// that counters never go backwards.
///
/// Threads: any; takes a lock, so it is for opening things and for reading, not for I/O.
class MeterBook {
 public:
  /// Beyond that number, unused meters are dropped. If that is not enough, kOthers counts for the
  /// rest.
  static constexpr std::size_t kMostNames = 512;
  static constexpr const char* kOthers = "(others)";

  /// The meter of `name` for one writer; the address identifies the writer.
  std::shared_ptr<Meter> meter(const std::string& name, const void* writer);
  /// All readings, in the order of the names.
  std::vector<std::pair<std::string, MeterReading>> read() const;

  /// Counts an OPEN that was refused with this errno.
  void refused(int error);
  std::map<int, std::uint64_t> refusals() const;

 private:
  using Meters = std::map<const void*, std::shared_ptr<Meter>>;
  void make_room();

  mutable std::mutex mutex_;
  std::map<std::string, Meters> meters_;
  std::map<int, std::uint64_t> refusals_;
};

}  // namespace rnbd
