// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/metrics/meter.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace rnbd::meter_test {

constexpr auto kRead = MeteredOperation::read, kWrite = MeteredOperation::write;

TEST_CASE("meter: a bucket's bound belongs to it") {
  CHECK(LatencyHistogram::bucket_of(1) == 0);
  CHECK(LatencyHistogram::bucket_of(1000) == 0);
  CHECK(LatencyHistogram::bucket_of(1001) == 1);
  CHECK(LatencyHistogram::bucket_of(4'000) == 2);
  CHECK(LatencyHistogram::bucket_of(4'001) == 3);
  CHECK(LatencyHistogram::bucket_of(UINT64_MAX / 2) == LatencyHistogram::kBuckets - 1);
}

TEST_CASE("meter: the first operation of each kind is timed, and every eighth") {
  Meter meter;
  std::string timed;
  for (int i = 0; i < 10; ++i) timed += meter.begin(kRead) ? 'x' : '.';
  CHECK(timed == "x.......x.");
  CHECK(meter.begin(kWrite));
}

TEST_CASE("meter: what was begun is in flight until it ends, and failures move no bytes") {
  MeterBook book;
  const int here = 0, there = 0;
  const auto one = book.meter("disk", &here);
  const auto other = book.meter("disk", &there);
  CHECK(book.meter("disk", &here) == one);
  CHECK(one != other);
  for (Meter* meter : {one.get(), other.get()}) {
    meter->begin(kWrite);
    meter->begin(kWrite);
    meter->end(kWrite, 512, 0, 3000);
  }
  other->end(kWrite, 512, ENOSPC, 0);
  const auto all = book.read();
  REQUIRE(all.size() == 1);
  const MeterReading& reading = all.front().second;
  CHECK(reading.of(kWrite).ended == 3);
  CHECK(reading.of(kWrite).bytes == 1024);
  CHECK(reading.of(kWrite).timed == 2);
  CHECK(reading.of(kWrite).nanoseconds == 6000);
  CHECK(reading.in_flight == 1);
  CHECK(reading.errors[place_of_metered_error(ENOSPC)] == 1);
  CHECK(std::string{name_of_metered_error(place_of_metered_error(ENOTCONN))} == "other");
}

TEST_CASE("meter: the newest failure of storage is remembered, and no mistake of a client") {
  MeterBook book;
  const int one = 0, two = 0;
  const auto first = book.meter("disk", &one), second = book.meter("disk", &two);
  first->end(MeteredOperation::read, 512, EINVAL, 0);
  first->end(MeteredOperation::read, 512, EROFS, 0);
  CHECK(book.read().front().second.last_failure.at == 0);
  second->end(MeteredOperation::flush, 0, ENOSPC, 0);
  const StorageFailure last = book.read().front().second.last_failure;
  CHECK(last.at > 1'700'000'000);
  CHECK(last.operation == MeteredOperation::flush);
  CHECK(last.error == ENOSPC);
  first->end(MeteredOperation::write, 512, EIO, 0);
  CHECK(first->last_failure().error == EIO);
  CHECK(first->last_failure().at >= last.at);
}

TEST_CASE("meter: names that nobody uses make room, and those beyond the limit count together") {
  MeterBook book;
  const int writer = 0;
  std::vector<std::shared_ptr<Meter>> used;
  for (std::size_t i = 0; i < MeterBook::kMostNames; ++i) {
    used.push_back(book.meter(std::to_string(i), &writer));
  }
  const auto beyond = book.meter("beyond", &writer);
  CHECK(beyond == book.meter("further", &writer));
  CHECK(beyond == book.meter(MeterBook::kOthers, &writer));
  used.clear();
  CHECK(book.meter("new", &writer) != beyond);
  CHECK(book.read().size() == 2);
}

}  // namespace rnbd::meter_test
