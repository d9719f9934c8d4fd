// SPDX-License-Identifier: BSD-3-Clause
// The messages between a running program and its heir.
#pragma once

#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/daemon/bridge/estate.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// The environment variable with the number of the descriptor that an heir has.
inline constexpr const char* kHeirVariable = "RNBD_HEIR";

/// A message's first byte says which it is.
enum class HeirMessage : char {
  ready = 'R',   ///< behind it the version of records and of the program
  refuse = 'X',  ///< behind it the reason
  serves = 'S',  ///< all is taken over, and it could serve
  offer = 'O',   ///< with the file of the record
  more = 'F',    ///< with sockets
  go = 'G',      ///< it serves from now on
};

/// One end of the connection between both. A message is never cut.
///
/// Threads: one at a time.
class HeirLink {
 public:
  explicit HeirLink(int socket);

  int descriptor() const { return socket_.get(); }
  /// False: the other end has gone, or reads nothing.
  bool send(HeirMessage what, const std::string& text = {}, std::span<const int> sockets = {});
  /// The next message with its first byte, and what came with it. None: the other end has gone.
  std::optional<std::string> receive(std::vector<int>& sockets);

  bool send_estate(Estate& estate);
  /// With a message `offer`, and what came with it. Errors: a sentence.
  tl::expected<Estate, std::string> receive_estate(std::vector<int> with_offer);
  void close() { socket_.reset(); }

 private:
  rtrs::OwnedFd socket_;
};

/// The program that this one follows.
class Predecessor {
 public:
  /// This program was started as an heir, and of_environment() not called yet.
  static bool is_expected() { return std::getenv(kHeirVariable) != nullptr; }
  /// None: this program was not started as an heir.
  static std::optional<Predecessor> of_environment();

  /// Says that this program is ready, and waits for everything. Errors: a sentence.
  tl::expected<Estate, std::string> await_estate();
  /// Tells why this program does not follow.
  void refuse(const std::string& why) { link_.send(HeirMessage::refuse, why); }
  /// Says that this program could serve. False: the other one goes on itself.
  bool take_over();
  /// Waits until the other one has left, for some seconds, or less if `hurry` says so. False: it is
  /// still there.
  bool await_end(bool (*hurry)());

 private:
  explicit Predecessor(int socket) : link_{socket} {}

  HeirLink link_;
};

}  // namespace rnbd
