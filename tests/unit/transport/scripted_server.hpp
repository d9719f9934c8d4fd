// SPDX-License-Identifier: BSD-3-Clause
// A server made of bytes that gets through the handshake, and then does what a test tells it.
#pragma once

#include <functional>

#include "tests/unit/transport/raw_peer.hpp"

namespace rtrs::test {

/// Sixteen permits; connection 0 and one lane. Digests are off.
class ScriptedServer {
 public:
  struct Wire {
    int control;
    int lane;

    static bool say(int socket, ConstBytes bytes) {
      return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
             static_cast<ssize_t>(bytes.size());
    }
    static std::vector<std::byte> frame(tcp::Opcode opcode, std::uint8_t flags,
                                        std::uint32_t immediate, ConstBytes payload = {}) {
      tcp::FrameHeader header;
      header.opcode = static_cast<std::uint8_t>(opcode);
      header.flags = flags;
      header.length = static_cast<std::uint32_t>(payload.size());
      header.immediate = immediate;
      const auto bytes = wire::bytes_of(header);
      std::vector<std::byte> all{bytes.begin(), bytes.end()};
      all.insert(all.end(), payload.begin(), payload.end());
      return all;
    }
    static std::vector<std::byte> info_response() {
      const std::array descriptors{wire::Descriptor{0, 1, 16 * 8192}};
      return frame(tcp::Opcode::send, 0, 0, wire::encode_info_response(descriptors));
    }
    /// Keeps a connection alive and does nothing else, until it is closed.
    static void answer_heartbeats(int socket) {
      const auto answer = frame(tcp::Opcode::write, tcp::kHasImmediate, wire::kHeartbeatAck);
      tcp::FrameHeader header;
      while (recv(socket, &header, sizeof(header), MSG_WAITALL) == sizeof(header)) {
        if (header.immediate == wire::kHeartbeat) say(socket, answer);
      }
    }
    static bool hear(int socket, std::size_t size) {
      std::vector<std::byte> bytes(size);
      return recv(socket, bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
    }
  };

  /// `script` runs when the info request is there.
  explicit ScriptedServer(std::function<void(Wire)> script, std::uint32_t features = 0)
      : features_{features}, thread_{[this, script = std::move(script)] {
          const int control = accept_one();
          const int lane = accept_one();
          if (lane >= 0 &&
              Wire::hear(control, sizeof(tcp::FrameHeader) + sizeof(wire::InfoRequest))) {
            script({control, lane});
          }
          ::close(control);
          ::close(lane);
        }} {}
  ~ScriptedServer() {
    listener_.stop();
    thread_.join();
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  ClientOptions options() const {
    auto options = client_options(listener_.port);
    options.lanes = 1;
    options.header_digest = options.data_digest = false;
    return options;
  }

 private:
  int accept_one() {
    const int peer = listener_.accept();
    if (peer < 0 || !Wire::hear(peer, sizeof(tcp::Hello))) return peer;
    wire::AcceptParameters accept;
    accept.queue_depth = 16;
    accept.max_io_size = accept.max_header_size = 4096;
    if (features_ != 0) accept.extension = {true, features_, 1, 0, wire::PathAccess::optimized};
    Wire::say(peer, wire::bytes_of(tcp::make_hello(wire::bytes_of(encode(accept)), 0)));
    return peer;
  }

  Listener listener_;
  std::uint32_t features_;
  std::thread thread_;
};

}  // namespace rtrs::test
