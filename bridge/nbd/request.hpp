// SPDX-License-Identifier: BSD-3-Clause
// One request of an NBD client, from its header to its reply.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "bridge/client/remote_device.hpp"
#include "bridge/nbd/buffer_pool.hpp"
#include "bridge/nbd/wire.hpp"

namespace rnbd::nbd {

class Connection;

/// Belongs to its connection, which uses it again and again.
struct Request {
  /// One that has arrived begins: on the lane if it can, else with a question for the right to
  /// change the device, else for a thread. A large one is carried out in pieces, of which the next
  /// begins where the last one would be `answered`. When its client has left, it is `free` at its
  /// next step, and at once in `unclaimed`, `waiting` and `answered`.
  enum class State : std::uint8_t {
    free,
    arriving,   ///< its payload is being received; then it begins, or is `answered`
    on_lane,    ///< `job` is under way; then it is `answered`, or `waiting`
    unclaimed,  ///< its question waits for its turn; then it is `claiming`
    claiming,   ///< `job` asks the question; then it begins anew, or is `answered` or `waiting`
    joining,    ///< another one asks the question; then it begins anew
    waiting,    ///< for its turn to be `blocking`
    blocking,   ///< a thread that may wait has it; then it is `answered`
    answered,   ///< its reply is in the queue; when that is sent it is `free`
  };

  Connection* connection = nullptr;
  State state = State::free;
  Command command{};
  std::uint16_t flags = 0;
  Cookie cookie{};
  std::uint64_t offset = 0;  ///< bytes
  std::uint64_t length = 0;  ///< bytes
  std::uint64_t rest = 0;    ///< bytes that a trim or zeroing has still to do
  int error = 0;             ///< errno
  BufferPool::Buffer buffer;
  bool metered = false;  ///< begun, and not ended yet, for the meter of its connection
  std::chrono::steady_clock::time_point began{};  ///< of those that are timed

  Transfer transfer;
  Disk::Begun begun;
  std::optional<TransferOperation> operation;
  std::unique_ptr<Disk::Claim> claim;
  rtrs::LaneLoop::Job job;
  std::uint32_t extents = 0;  ///< of the block status in `buffer`

  static constexpr std::size_t kMaxHeader = sizeof(ExtendedChunk) + sizeof(DataBody);
  std::array<std::byte, kMaxHeader> header;  ///< of the reply
  std::uint32_t header_size = 0;             ///< bytes
  std::uint32_t payload_size = 0;            ///< bytes of `buffer` that the reply carries
  Request* next = nullptr;                   ///< in the list that its state implies

  std::byte* payload() const { return buffer.data(); }
  /// True: the request changes the content of the device.
  bool changes() const {
    return command == Command::write || command == Command::trim ||
           command == Command::write_zeroes;
  }
};

}  // namespace rnbd::nbd
