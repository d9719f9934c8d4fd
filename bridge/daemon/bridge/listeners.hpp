// SPDX-License-Identifier: BSD-3-Clause
// The listening sockets of rnbd-bridge, including addresses that the machine gets after the start.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/control/commands.hpp"
#include "bridge/daemon/bridge/estate.hpp"
#include "bridge/daemon/bridge/options.hpp"
#include "bridge/nbd/listener.hpp"

namespace rnbd {

/// Threads: any.
class BridgeListeners {
 public:
  using Take = std::function<void(std::vector<nbd::Listener>)>;

  struct Status {
    std::string address;
    std::string trouble;  ///< why it waits; "": it listens
    bool reachable_from_outside = false;
  };

  /// Listens on the service manager's sockets, and on the addresses of the options. An address that
  /// the machine does not have yet is no failure.
  ///
  /// Errors: a sentence that names the address and the cure.
  static tl::expected<std::unique_ptr<BridgeListeners>, std::string> open(
      const BridgeOptions& options);
  ~BridgeListeners() { end(); }
  BridgeListeners(const BridgeListeners&) = delete;
  BridgeListeners& operator=(const BridgeListeners&) = delete;

  /// Listens on nothing yet: adopt() is to come.
  static std::unique_ptr<BridgeListeners> of_heir(const BridgeOptions& options);
  /// Takes over sockets of the predecessor, once. Addresses without one are late.
  std::vector<nbd::Listener> adopt(const std::vector<LeftListener>& left);
  /// Those that are open, for an heir. The front has them.
  std::vector<LeftListener> left() const;

  /// Hands over the sockets that are open from the start, once.
  std::vector<nbd::Listener> take_first();
  /// Tries the waiting addresses every second. Both functions are called on a thread of its own.
  void await_others(Take take, std::function<void()> on_change);
  /// Neither function is called any more after this. Does not wait for a name server.
  void end();

  std::vector<Status> status() const;
  /// "tcp:127.0.0.1:10809 (waiting for tcp:192.0.2.1:10809)"
  std::string describe() const;

 private:
  struct State;
  explicit BridgeListeners(std::shared_ptr<State> state) : state_{std::move(state)} {}
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
  std::vector<nbd::Listener> first_;
};

/// The client's command `status`, with the listeners added.
std::vector<ControlCommand> with_listeners(std::vector<ControlCommand> commands,
                                           const BridgeListeners& listeners);

}  // namespace rnbd
