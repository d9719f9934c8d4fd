// SPDX-License-Identifier: BSD-3-Clause
// A lane on which paths come and go, for the tests of fail-over.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"

namespace rtrs {

/// A lane with three paths and two permits.
struct Bench {
  explicit Bench(bool once = true, Unresolved* barrier = nullptr, Unresolved* opens = nullptr)
      : exactly_once{once}, lane{0, 2, barrier, opens} {
    for (unsigned i = 0; i < 3; ++i) {
      for (std::uint32_t slot = 0; slot < 2; ++slot) chunks[i].push_back({0x1000 * (slot + 1), i});
    }
  }
  void attach(unsigned path) {
    lane.attach(path, {.queue_pair = &queue_pairs[path],
                       .chunks = chunks[path],
                       .queue_depth = 2,
                       .chunk_size = 8192,
                       .max_io_size = max_io_size,
                       .exactly_once = exactly_once,
                       .races = races});
  }
  Complaint reply(unsigned path, std::uint32_t buffer, int error = 0, std::uint32_t bytes = 0) {
    return lane.connection(path).on_write_with_immediate(
        encode(wire::ResponseImmediate{buffer, error}), bytes);
  }
  std::size_t posts(unsigned path) const { return queue_pairs[path].posts.size(); }
  /// The trailer of the newest post on a path.
  wire::WriteTrailer trailer(unsigned path) const {
    const auto& header = queue_pairs[path].posts.back().header;
    wire::WriteTrailer trailer;
    const std::size_t end = header.size() - sizeof(wire::WriteHeader);
    std::memcpy(&trailer, header.data() + end - sizeof(trailer), sizeof(trailer));
    return trailer;
  }

  bool exactly_once;
  bool races = false;
  std::uint32_t max_io_size = 4096;
  FakeQueuePair queue_pairs[3];
  std::vector<wire::ChunkAddress> chunks[3];
  ClientLane lane;
};

struct TestRequest : Request {
  explicit TestRequest(bool read = false) {
    message = std::as_bytes(std::span{text});
    is_read = read;
    if (read) read_data = buffer;
    if (!read) write_data = buffer;
    done = [](ClientLane&, Request& request) { ++static_cast<TestRequest&>(request).calls; };
    renew = [](Request& request) { ++static_cast<TestRequest&>(request).renewals; };
  }
  std::string text = "message";
  std::vector<std::byte> buffer = std::vector<std::byte>(512, std::byte{5});
  int calls = 0;
  int renewals = 0;
};

}  // namespace rtrs
