// SPDX-License-Identifier: BSD-3-Clause
// The life of a disk of the kernel, from its attachment to its end: a table of states, without
// threads, clocks and files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "bridge/kernel/message.hpp"

namespace rnbd::kernel {

enum class State : std::uint8_t {
  absent,       ///< no bridge serves the device
  connecting,   ///< the kernel was sent a socket
  serving,      ///< requests come through the socket
  draining,     ///< running requests are completed
  handed_over,  ///< the successor has the socket
};

enum class Event : std::uint8_t {
  found_none,    ///< the kernel has no device of this name
  found_own,     ///< it has this disk under this name, and the bridge that served it is dead
  found_kept,    ///< likewise, and the predecessor has left its socket
  found_other,   ///< it has another disk under this name
  joined,        ///< the kernel has taken the socket
  refused,       ///< it has refused the socket
  grown,         ///< the export is larger than the device, and requests flow
  shrunk,        ///< the export is smaller than the device
  link_lost,     ///< the socket has ended, and the device is still ours
  unmapped,      ///< another program has disconnected the device
  stop,          ///< the device must be unmapped
  stop_to_hand,  ///< a successor comes
  drained,       ///< nothing is under way, and the next request has not begun
  late,          ///< running requests do not end in time
};

enum class Action : std::uint8_t {
  nothing,
  tell,      ///< Row::message goes to the kernel
  refuse,    ///< it is another disk, which must not be touched
  complain,  ///< only write a line to the log
  look,      ///< at the present state of the kernel
  resume,    ///< serve the socket that was kept
  drain,     ///< begin no more requests
  hand,      ///< give the socket to the service manager
  drop,      ///< close the socket: the successor brings a new one
  leave,     ///< the program has nothing more to do
};

/// The contents of a message to the kernel.
struct Carried {
  Command command = Command::connect;
  unsigned sockets = 0;
  bool identifier = false;
  bool size = false;
};

struct Row {
  State from;
  Event event;
  State to;
  Action action;
  std::optional<Carried> message = {};
};

/// The rows of the shipped table.
std::span<const Row> attachment_rows();

/// Threads: one at a time.
class Attachment {
 public:
  /// Tests pass rows with planted bugs.
  explicit Attachment(std::span<const Row> rows = attachment_rows()) : rows_{rows} {}

  State state() const { return state_; }
  /// Goes on to the next state. Null: the event has no meaning in this state, which stays.
  const Row* on(Event event);

 private:
  std::span<const Row> rows_;
  State state_ = State::absent;
};

/// The parts of the message `all` that it may carry.
Message message_of(const Carried& carried, const Message& all);

/// "" or the reason why this message must never be sent: the kernel might hang, or use another
/// disk.
std::string complaint_about(const Message& message);

}  // namespace rnbd::kernel
