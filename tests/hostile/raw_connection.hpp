// SPDX-License-Identifier: BSD-3-Clause
// A queue pair in the hands of somebody who may post anything.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/transport/verbs/cm.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs::hostile {

/// A guest's CPUs are emulated, and shared: far longer than anything takes.
inline constexpr std::chrono::milliseconds kLimit{30'000};

/// A work request to post.
struct Shot {
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  ConstBytes payload{};
  RemoteMemory to{};
  std::uint32_t immediate = 0;  ///< or the key to invalidate
};

/// A message that came in.
struct Arrival {
  std::vector<std::byte> message;
  std::optional<std::uint32_t> immediate;
  std::uint32_t bytes = 0;  ///< written or sent
};

/// The other side's answer to a connect request.
struct Answer {
  int error = 0;       ///< of its record; 0 = accepted, -1 = neither accepted nor refused in time
  bool record = true;  ///< false: refused without one that can be read
};

/// One connection; every call that waits has a deadline and is false (or empty) when it passed.
///
/// Threads: one at a time.
class RawConnection {
 public:
  static constexpr std::size_t kMemory = 1 << 20;  ///< what the peer may write
  static constexpr std::size_t kReceive = 4096;    ///< bytes of each receive
  static constexpr unsigned kReceives = 128;

  /// Ready for connect() toward an address.
  static std::unique_ptr<RawConnection> toward(const std::string& host, std::uint16_t port);
  /// An id whose connect request came in. Connections of one domain may write to each other's
  /// memory.
  explicit RawConnection(verbs::CmId id, std::shared_ptr<ibv_pd> domain = {});
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  /// Asks for the connection; answer() completes it, and nothing does if that is not called.
  void connect(ConstBytes record);
  Answer answer();
  /// The server's grant, once answer() told that it did.
  const wire::AcceptParameters& accepted() const { return accepted_; }
  /// The record behind it, byte by byte.
  wire::ConnectResponse response() const;
  /// Both ends of the queue pair, as a proof has them; this one is the client's.
  Binding binding() const;
  void accept(ConstBytes record);
  void reject(ConstBytes record);
  void disconnect();

  /// Posts receives of kReceive bytes; at most kReceives of them may be pending.
  void receive(unsigned count);
  void post(const Shot& shot);
  /// The next thing that arrives.
  std::optional<Arrival> next();
  /// The peer has closed the connection.
  bool is_closed(std::chrono::milliseconds limit = kLimit);
  bool wait_until(const std::function<bool()>& done, std::chrono::milliseconds limit = kLimit);
  bool disconnected() const { return disconnected_; }

  MutableBytes memory() { return {memory_.data(), kMemory}; }
  RemoteMemory exposed() const;
  const std::shared_ptr<ibv_pd>& domain() const { return domain_; }

 private:
  void look();
  void read_completions();
  void read_cm_events();
  void on_receive(const ibv_wc& completion);

  verbs::CmId id_;
  std::vector<std::byte> memory_;
  std::shared_ptr<ibv_pd> domain_;
  ibv_mr* region_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* completions_ = nullptr;
  std::size_t outgoing_ = 0;
  unsigned posted_ = 0;
  std::deque<Arrival> arrivals_;
  bool established_ = false;
  bool refused_ = false;
  bool disconnected_ = false;
  std::vector<std::byte> record_;
  wire::AcceptParameters accepted_;
};

}  // namespace rtrs::hostile
