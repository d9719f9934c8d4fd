// SPDX-License-Identifier: BSD-3-Clause
// A client of RTRS and RNBD that can say what no honest one says.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/hostile/raw_connection.hpp"

namespace rtrs::hostile {

/// Where the attacked server listens: RNBD_TARGET=ADDRESS:PORT.
struct Target {
  std::string host;
  std::uint16_t port = 0;
};
Target target();
/// It runs with --always-invalidate: RNBD_NEW_KEYS is set.
bool with_new_keys();

/// A connect request with uuids of its own.
wire::ConnectParameters parameters(std::uint16_t cid, std::uint16_t cid_count);

/// Sends one connect request and waits for its answer.
struct Caller {
  explicit Caller(const wire::ConnectParameters& parameters)
      : Caller{wire::bytes_of(wire::encode(parameters))} {}
  explicit Caller(ConstBytes record)
      : connection{RawConnection::toward(target().host, target().port)} {
    connection->connect(record);
    answer = connection->answer();
  }
  std::unique_ptr<RawConnection> connection;
  Answer answer;
};

class RawSession;

struct RawOptions {
  std::uint16_t cids = 2;
  std::string name{};                  ///< "" = one of its own
  bool own_peer = false;               ///< announces the extension, and so gets short heartbeats
  std::uint32_t features = 0;          ///< that it announces then
  bool info = true;                    ///< exchanges the infos
  unsigned receives = 32;              ///< per connection
  const RawSession* beside = nullptr;  ///< another path of this one's session
  const RawSession* again = nullptr;   ///< this one's path, connected once more
};

/// All connections of a path.
class RawSession {
 public:
  explicit RawSession(RawOptions options = {});

  RawConnection& cid(std::size_t n) { return *connections.at(n); }
  void send_info(ConstBytes request, std::size_t on = 0) {
    cid(on).post({.opcode = IBV_WR_SEND, .payload = request});
  }
  /// The info response is there and understood.
  bool heard_info();
  /// The server has closed all connections.
  bool is_closed();

  std::uint32_t chunk_size() const { return accepted.chunk_size(); }
  RemoteMemory chunk(std::uint32_t buffer) const {
    return {chunks.at(buffer).address, chunks.at(buffer).key};
  }
  std::uint32_t immediate(std::uint32_t buffer, std::uint32_t offset) const {
    return encode(wire::RequestImmediate{buffer, offset}, accepted.queue_depth);
  }
  /// Writes `bytes` at `offset` of chunk `buffer` and points the immediate at `header_offset`.
  void request(std::uint32_t buffer, std::uint32_t offset, ConstBytes bytes,
               std::uint32_t header_offset, std::size_t on = 1);
  /// An RTRS read whose descriptor is for `room` bytes (0: no descriptor). Writes have no
  /// generation.
  void start_read(ConstBytes message, std::uint32_t room, std::uint32_t buffer = 0,
                  std::size_t on = 1);
  void start_write(ConstBytes message, ConstBytes data = {}, std::uint32_t buffer = 0,
                   std::size_t on = 1);
  /// The errno of the next answer; empty when there is none. A new key that comes with it is noted.
  std::optional<int> answer(std::size_t on = 1);

  int read(ConstBytes message, std::uint32_t room) {
    start_read(message, room);
    return answer().value_or(-1);
  }
  int write(ConstBytes message, ConstBytes data = {}) {
    start_write(message, data);
    return answer().value_or(-1);
  }
  /// The data of the last read.
  ConstBytes data(std::size_t on = 1) { return cid(on).memory(); }
  /// Returns the device's id.
  std::uint32_t open(std::string_view device, rnbd::wire::AccessMode mode);

  std::string name;
  wire::ConnectParameters first;
  wire::AcceptParameters accepted;
  std::vector<wire::ChunkAddress> chunks;
  std::vector<std::unique_ptr<RawConnection>> connections;
};

/// The message of an I/O request.
rnbd::wire::Io io(std::uint32_t device, std::uint32_t rw, std::uint64_t sector,
                  std::uint32_t length);

/// Message and header one behind the other.
template <class... Parts>
std::vector<std::byte> joined(const Parts&... parts) {
  std::vector<std::byte> all;
  const auto append = [&all](ConstBytes bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  (append(wire::bytes_of(parts)), ...);
  return all;
}

}  // namespace rtrs::hostile
