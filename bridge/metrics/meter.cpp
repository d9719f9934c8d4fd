// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/metrics/meter.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace rnbd {
namespace {

struct MeteredError {
  int error;
  const char* name;
};

/// The last one has no errno.
constexpr std::array<MeteredError, kMeteredErrors> kErrors{{{EIO, "EIO"},
                                                            {ENOSPC, "ENOSPC"},
                                                            {EROFS, "EROFS"},
                                                            {EINVAL, "EINVAL"},
                                                            {EOPNOTSUPP, "EOPNOTSUPP"},
                                                            {ENODEV, "ENODEV"},
                                                            {ETIMEDOUT, "ETIMEDOUT"},
                                                            {ENOMEM, "ENOMEM"},
                                                            {EINTR, "EINTR"},
                                                            {0, "other"}}};

/// The two numbers are read one after the other, so `less` may be the greater one.
std::uint64_t difference(std::uint64_t more, std::uint64_t less) {
  return more > less ? more - less : 0;
}

}  // namespace

const char* to_string(MeteredOperation operation) {
  switch (operation) {
    case MeteredOperation::read:
      return "read";
    case MeteredOperation::write:
      return "write";
    case MeteredOperation::flush:
      return "flush";
    case MeteredOperation::discard:
      return "discard";
    case MeteredOperation::write_zeroes:
      return "write_zeroes";
    case MeteredOperation::other:
      break;
  }
  return "other";
}

const char* name_of_metered_error(std::size_t place) { return kErrors[place].name; }

std::size_t place_of_metered_error(int error) {
  for (std::size_t place = 0; place + 1 < kErrors.size(); ++place) {
    if (kErrors[place].error == error) return place;
  }
  return kErrors.size() - 1;
}

/// A request that makes no sense, for example, is no failure of the storage.
void Meter::failed(MeteredOperation operation, int error) {
  errors_[place_of_metered_error(error)].add();
  if (error != EIO && error != ENOSPC) return;
  const StorageFailure failure{std::time(nullptr), operation, error};
  last_failure_.store(failure.packed(), std::memory_order_relaxed);
}

void MeterReading::add(const Meter& meter) {
  for (std::size_t i = 0; i < kMeteredOperations; ++i) {
    const Meter::Operations& from = meter.operations(static_cast<MeteredOperation>(i));
    Operations& to = operations[i];
    const std::uint64_t ended_by_now = from.ended.get();
    to.ended += ended_by_now;
    to.bytes += from.bytes.get();
    to.nanoseconds += from.latency.nanoseconds();
    for (std::size_t bucket = 0; bucket < to.buckets.size(); ++bucket) {
      const std::uint64_t count = from.latency.bucket(bucket);
      to.buckets[bucket] += count;
      to.timed += count;
    }
    in_flight += difference(from.begun.get(), ended_by_now);
  }
  for (std::size_t place = 0; place < kMeteredErrors; ++place) {
    errors[place] += meter.errors(place);
  }
  const StorageFailure failure = meter.last_failure();
  if (failure.at > last_failure.at) last_failure = failure;
}

std::shared_ptr<Meter> MeterBook::meter(const std::string& name, const void* writer) {
  const std::lock_guard lock{mutex_};
  if (!meters_.contains(name) && meters_.size() >= kMostNames) make_room();
  const bool known = meters_.contains(name) || meters_.size() < kMostNames;
  std::shared_ptr<Meter>& meter = meters_[known ? name : kOthers][writer];
  if (meter == nullptr) meter = std::make_shared<Meter>();
  return meter;
}

void MeterBook::make_room() {
  std::erase_if(meters_, [](const auto& entry) {
    return std::ranges::all_of(entry.second,
                               [](const auto& meter) { return meter.second.use_count() == 1; });
  });
}

std::vector<std::pair<std::string, MeterReading>> MeterBook::read() const {
  const std::lock_guard lock{mutex_};
  std::vector<std::pair<std::string, MeterReading>> all;
  all.reserve(meters_.size());
  for (const auto& [name, meters] : meters_) {
    MeterReading& reading = all.emplace_back(name, MeterReading{}).second;
    for (const auto& [writer, meter] : meters) reading.add(*meter);
  }
  return all;
}

void MeterBook::refused(int error) {
  const std::lock_guard lock{mutex_};
  ++refusals_[error];
}

std::map<int, std::uint64_t> MeterBook::refusals() const {
  const std::lock_guard lock{mutex_};
  return refusals_;
}

}  // namespace rnbd
