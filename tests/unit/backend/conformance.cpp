// SPDX-License-Identifier: BSD-3-Clause
// The checks that every backend with memory passes, whatever is behind it.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <random>
#include <semaphore>
#include <thread>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test {

namespace {

constexpr std::uint64_t kSector = 512;

std::uint64_t padded(const BackendInfo& info) {
  return (info.size + kSector - 1) / kSector * kSector;
}

/// For much data: one memcmp(), where == asks a sanitizer about every byte.
bool same(const Bytes& a, const Bytes& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

Bytes zero_bytes(std::size_t length) { return Bytes(length, std::byte{0}); }

void check_tail(Bench& bench) {
  const std::uint64_t last = (bench.info().size - 1) / kSector * kSector;
  const std::uint64_t inside = bench.info().size - last;
  const Bytes sector = pattern(kSector, 5);
  REQUIRE(bench.write(last, sector) == 0);
  Bytes expected = sector;
  std::fill(expected.begin() + static_cast<std::ptrdiff_t>(inside), expected.end(), std::byte{0});
  CHECK(bench.read(last, kSector) == expected);
  if (bench.info().can_write_zeroes) {
    REQUIRE(bench.zero(last, kSector, {.no_unmap = true}) == 0);
    CHECK(bench.read(last, kSector) == zero_bytes(kSector));
  }
  // A larger request that ends in the padding.
  const Bytes large = pattern(16 * kSector, 6);
  REQUIRE(bench.write(last - 15 * kSector, large, /*fua=*/true) == 0);
  expected = large;
  std::fill(expected.end() - static_cast<std::ptrdiff_t>(kSector - inside), expected.end(),
            std::byte{0});
  CHECK(bench.read(last - 15 * kSector, large.size()) == expected);
}

/// Random operations against a copy of what should be there.
void check_against_model(Bench& bench, bool discard_zeroes) {
  std::mt19937 random{42};
  Bytes model = zero_bytes(padded(bench.info()));
  const std::uint64_t sectors = model.size() / kSector;
  const auto pick = [&](std::uint64_t bound) { return random() % bound; };
  for (unsigned step = 0; step < 200; ++step) {
    const std::uint64_t first = pick(sectors);
    const std::uint64_t count = 1 + pick(std::min<std::uint64_t>(sectors - first, 600));
    const std::uint64_t offset = first * kSector;
    const std::uint64_t length = std::min(count, sectors - first) * kSector;
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    CAPTURE(step);
    switch (pick(6)) {
      case 0:
        if (!bench.info().can_write_zeroes) break;
        CHECK(bench.zero(offset, length, {.no_unmap = pick(2) == 0, .fua = pick(4) == 0}) == 0);
        std::fill(begin, end, std::byte{0});
        break;
      case 1:
        if (!bench.info().can_discard) break;
        CHECK(bench.discard(offset, length, /*fua=*/pick(4) == 0) == 0);
        if (discard_zeroes) {
          std::fill(begin, end, std::byte{0});
        } else {
          const Bytes now = bench.read(offset, length);
          std::copy(now.begin(), now.end(), begin);
        }
        break;
      case 2:
        CHECK(bench.flush() == 0);
        break;
      default:
        const Bytes data = pattern(length, step);
        CHECK(bench.write(offset, data, /*fua=*/pick(8) == 0) == 0);
        std::copy(data.begin(), data.end(), begin);
        std::fill(model.begin() + static_cast<std::ptrdiff_t>(bench.info().size), model.end(),
                  std::byte{0});
        break;
    }
    CHECK(same(bench.read(offset, length), Bytes(begin, end)));
  }
  CHECK(same(bench.read(0, model.size()), model));
}

void check_concurrent(Bench& bench) {
  constexpr std::size_t kRequests = 600;  // more than any ring has room for
  constexpr std::size_t kLength = 4096;
  std::vector<Bytes> data;
  for (std::size_t i = 0; i < kRequests; ++i) data.push_back(pattern(kLength, i));
  for (const bool writing : {true, false}) {
    std::vector<Bytes> buffers =
        writing ? data : std::vector<Bytes>(kRequests, zero_bytes(kLength));
    std::vector<BackendRequest> requests(kRequests);
    for (std::size_t i = 0; i < kRequests; ++i) {
      requests[i].operation = writing ? BackendOperation::write : BackendOperation::read;
      requests[i].offset = (i * 7 % kRequests) * kLength;
      requests[i].length = kLength;
      requests[i].data = buffers[i].data();
      requests[i].fua = writing && i % 25 == 1;
      if (writing && i % 50 == 0) {
        requests[i].operation = BackendOperation::flush;
        requests[i].fua = false;
      }
    }
    CHECK(bench.run(requests) == std::vector<int>(kRequests, 0));
    for (std::size_t i = 0; i < kRequests; ++i) {
      if (i % 50 != 0) CHECK(buffers[i] == data[i]);
    }
  }
}

/// A reactor with its thread, as in the server, and a queue; run() is another thread's.
class Loop {
 public:
  Loop(Backend& backend, unsigned index) : reactor_{index}, thread_{[this] { reactor_.run(); }} {
    on_reactor([&] { queue_ = backend.open_queue(&reactor_); });
  }
  ~Loop() {
    reactor_.stop();
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  int run(BackendOperation operation, std::uint64_t offset, Bytes& data) {
    BackendRequest request;
    request.operation = operation;
    request.offset = offset;
    request.length = data.size();
    request.data = data.data();
    request.context = this;
    request.done = [](BackendRequest& finished, int error) {
      auto& self = *static_cast<Loop*>(finished.context);
      self.error_ = error;
      self.done_.release();
    };
    boost::asio::post(reactor_.io(), [&] { queue_->submit(request); });
    done_.acquire();
    return error_;
  }
  void close_queue() {
    on_reactor([&] { queue_.reset(); });
  }

 private:
  template <class Action>
  void on_reactor(Action action) {
    boost::asio::post(reactor_.io(), [&] {
      action();
      done_.release();
    });
    done_.acquire();
  }

  rtrs::Reactor reactor_;
  std::unique_ptr<BackendQueue> queue_;
  std::binary_semaphore done_{0};
  int error_ = 0;
  std::thread thread_;
};

/// The number of things that went wrong while one thread worked on its half of the blocks.
unsigned work_on(Loop& loop, unsigned half, bool can_zero) {
  unsigned bad = 0;
  const auto expect = [&](bool good) { bad += good ? 0 : 1; };
  for (unsigned step = 0; step < 100; ++step) {
    const std::uint64_t offset = (2 * (step % 40) + half) * 8 * kSector;
    Bytes data = pattern(8 * kSector, step + 1000 * half);
    Bytes back = zero_bytes(data.size());
    Bytes none;
    expect(loop.run(BackendOperation::write, offset, data) == 0);
    expect(loop.run(BackendOperation::read, offset, back) == 0);
    expect(back == data);
    if (step % 10 == 0) expect(loop.run(BackendOperation::flush, 0, none) == 0);
    if (step % 7 == 0 && can_zero) {
      expect(loop.run(BackendOperation::write_zeroes, offset, data) == 0);
    }
  }
  return bad;
}

void check_threads(Backend& backend) {
  const bool can_zero = backend.info().can_write_zeroes;
  Loop here{backend, 0};
  Loop there{backend, 1};
  unsigned bad_there = 0;
  std::thread thread{[&] { bad_there = work_on(there, 1, can_zero); }};
  const unsigned bad_here = work_on(here, 0, can_zero);
  thread.join();
  CHECK(bad_here == 0);
  CHECK(bad_there == 0);
  // The first of the two may go first.
  here.close_queue();
  CHECK(work_on(there, 1, can_zero) == 0);
  there.close_queue();
}

void check_extents(Bench& bench, bool shows_holes) {
  const std::uint64_t size = padded(bench.info());
  REQUIRE(bench.write(1024 * 1024, pattern(256 * 1024, 1)) == 0);
  REQUIRE(bench.flush() == 0);
  const auto all = bench.extents(0, size);
  std::uint64_t at = 0;
  for (const BackendExtent& extent : all) {
    CHECK(extent.length > 0);
    const std::uint64_t end = at + extent.length;
    if (extent.hole || extent.zero) CHECK((end <= 1024 * 1024 || at >= 1280 * 1024));
    at = end;
  }
  CHECK(at == size);
  CHECK(bench.extents(0, size, 1).size() == 1);
  const auto inner = bench.extents(1024 * 1024, 4096);
  REQUIRE(inner.size() == 1);
  CHECK(inner[0].length == 4096);
  CHECK(!inner[0].hole);
  if (!bench.info().can_extents || !shows_holes) return;
  CHECK(all.size() >= 3);
  CHECK(all.front().hole);
}

void check_zeroes(Bench& bench) {
  if (!bench.info().can_write_zeroes) {
    CHECK(bench.zero(0, 4096, {}) == EOPNOTSUPP);
    return;
  }
  const Bytes data = pattern(1024 * 1024, 3);
  for (const bool no_unmap : {false, true}) {
    CAPTURE(no_unmap);
    REQUIRE(bench.write(0, data) == 0);
    const int error = bench.zero(4096, 512 * 1024, {.no_unmap = no_unmap, .fast = true});
    CHECK((error == 0 || error == EOPNOTSUPP));
    if (error != 0) CHECK(bench.zero(4096, 512 * 1024, {.no_unmap = no_unmap}) == 0);
    Bytes expected = data;
    std::fill_n(expected.begin() + 4096, 512 * 1024, std::byte{0});
    CHECK(bench.read(0, data.size()) == expected);
    // Not on any block boundary but the sector's.
    CHECK(bench.zero(3 * kSector, 5 * kSector, {.no_unmap = no_unmap, .fua = true}) == 0);
    std::fill_n(expected.begin() + 3 * kSector, 5 * kSector, std::byte{0});
    CHECK(bench.read(0, data.size()) == expected);
  }
}

}  // namespace

void check_conformance(Storage storage) {
  std::unique_ptr<Backend>& backend = storage.backend;
  const auto check_with = [&](auto check) {
    Bench bench{std::move(backend)};
    check(bench);
  };
  SUBCASE("two reactors work on it at the same time") { check_threads(*backend); }
  SUBCASE("a queue that was never used can be closed") {
    rtrs::Reactor reactor{0};
    backend->open_queue(&reactor).reset();
  }
  SUBCASE("blocks never written read as zeroes") {
    check_with([](Bench& bench) { CHECK(bench.read(0, 1024 * 1024) == zero_bytes(1024 * 1024)); });
  }
  SUBCASE("reads see what random writes, zeroes and discards left") {
    check_with([&](Bench& bench) { check_against_model(bench, storage.discard_zeroes); });
  }
  SUBCASE("the padding behind the end reads as zeroes and takes nothing") {
    check_with(check_tail);
  }
  SUBCASE("hundreds of requests at once all end, each with its own data") {
    check_with(check_concurrent);
  }
  SUBCASE("zeroing leaves the neighbours alone") { check_with(check_zeroes); }
  SUBCASE("extents touch each other, cover the range, and call no data a hole") {
    check_with([&](Bench& bench) { check_extents(bench, storage.shows_holes); });
  }
  SUBCASE("read-ahead succeeds") {
    check_with([](Bench& bench) {
      BackendRequest request;
      request.operation = BackendOperation::cache;
      request.length = 1024 * 1024;
      CHECK(bench.run(request) == 0);
    });
  }
}

}  // namespace rnbd::test
