// SPDX-License-Identifier: BSD-3-Clause
// The front-end of a guest (qemu, cloud-hypervisor, libblkio), and what it has set up.
#pragma once

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/metrics/meter.hpp"
#include "bridge/nbd/exports.hpp"
#include "bridge/vhost/loop.hpp"
#include "bridge/vhost/messages.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::vhost {

/// The things that a client finds here.
struct ClientSurroundings {
  nbd::CallPool& calls;
  MeterBook& meters;
  rtrs::Log log;
  rtrs::MakeOneCall make_call;
  const rtrs::WakeUp& wake;  ///< of the client's thread; on_wake() is due
};

/// Carries out the messages of one front-end. Each ring belongs to the loop of a lane.
///
/// Invariant: a ring runs between its start by SET_VRING_KICK and its end by GET_VRING_BASE, which
///            is answered when its requests have ended.
/// Threads:   one.
/// Source:    the specification of the vhost-user protocol.
class Client {
 public:
  Client(rtrs::OwnedFd socket, nbd::Lease disk, ClientSurroundings surroundings);
  /// The queues are all idle.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  int socket() const { return socket_.get(); }
  /// The events to poll the socket for.
  short events() const;
  /// Carries out what has come. False: the client has left, or must be left; why() tells.
  bool on_socket();
  /// A loop has something to tell; likewise.
  bool on_wake();
  /// Milliseconds until on_clock() is due; -1: it is not.
  int patience() const;
  void on_clock();
  /// "": it has closed its connection.
  const std::string& why() const { return why_; }

  /// No more requests are taken.
  void drain();
  /// Requests under way are given up, as Queue::abandon() says; few may still end after it.
  void abandon();
  /// The guest hears no more, and its memory is left alone.
  void leave_rings();
  /// After drain() or abandon(): nothing is under way.
  bool is_idle() const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  /// The answer to GET_VRING_BASE takes so long at most, or little more.
  static constexpr std::chrono::milliseconds kStopPatience{3000};

  struct Ring {
    RingSettings settings;
    bool enabled = false;
    bool started = false;
  };

  bool receive();
  std::size_t wanted() const;
  bool take_descriptors(::msghdr& head);
  bool try_to_carry_out(const Message& message);
  bool carry_out(const Message& message);
  bool break_off(const std::string& why);
  bool answer(const Answer& answer);
  bool acknowledge(const Message& message, bool done);

  bool set_features(std::uint64_t features);
  bool set_memory(const MemoryTable& table);
  bool set_number(MessageType type, RingState state);
  bool set_descriptor(MessageType type, RingDescriptor ring);
  bool start(unsigned index, rtrs::OwnedFd kick);
  bool begin_stop(unsigned index);
  bool end_stop();
  Answer config(ConfigRange range) const;
  Loop& loop_of(unsigned index);
  Ring& ring(unsigned index);
  bool enabled(const Ring& ring) const;

  rtrs::OwnedFd socket_;
  nbd::Lease disk_;
  ClientSurroundings surroundings_;
  const Offer offer_;
  LoopSurroundings of_loops_;
  std::vector<std::unique_ptr<Loop>> loops_;  ///< by lane; null: not needed yet
  std::vector<Ring> rings_;
  std::shared_ptr<const GuestMemory> memory_;
  std::uint64_t features_ = 0;
  std::uint64_t protocol_features_ = 0;
  std::optional<unsigned> stopping_;  ///< a ring, whose client waits for the answer
  std::chrono::milliseconds stop_patience_ = kStopPatience;
  Time stop_by_ = Time::max();  ///< max: its requests have been given up
  std::string why_;

  std::array<std::byte, sizeof(MessageHeader) + kMaxPayload> input_{};
  std::size_t received_ = 0;                ///< bytes of a message
  std::optional<CheckedHeader> header_;     ///< of it
  std::vector<rtrs::OwnedFd> descriptors_;  ///< that came with it
};

}  // namespace rnbd::vhost
