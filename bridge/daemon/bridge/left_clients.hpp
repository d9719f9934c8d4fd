// SPDX-License-Identifier: BSD-3-Clause
// NBD clients that a bridge leaves to its successor, which the service manager keeps meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/daemon/bridge/estate.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/nbd/exports.hpp"
#include "bridge/nbd/front.hpp"

namespace rnbd {

/// Gives the clients to the service manager, as many as it keeps. Closes their sockets here.
void store_clients(std::vector<nbd::Released> clients);

/// Clients of a predecessor. Until go_on() the service manager keeps them for yet another start.
///
/// Threads: one at a time.
class LeftClients {
 public:
  /// Takes them out of what the service manager has kept.
  explicit LeftClients(std::vector<StoredDescriptor>& stored);
  ~LeftClients() { end(); }  // close_disks() was called, or there are none
  LeftClients(const LeftClients&) = delete;
  LeftClients& operator=(const LeftClients&) = delete;

  /// Adds clients of another process. When settled().
  void take(std::vector<nbd::Released> clients);
  bool empty() const { return waiting_.empty(); }
  /// True if all have their disks, or are disconnected. Threads: any.
  bool settled() const { return settled_; }
  /// Opens the disks of all, once. Then go_on() serves them at once. Returns "" or why one client
  /// could not go on.
  std::string open_now(const ClientConfig& config, nbd::Exports& exports);
  /// Has the front serve them, on a thread of its own, because the server may have to be awaited,
  /// for no-path-timeout. Those whose disk is not what it was are disconnected. The front's door is
  /// opened when each disk has been tried once. The arguments must outlive end(). When settled().
  void go_on(const ClientConfig& config, nbd::Exports& exports, nbd::Front& front);
  /// Returns those who still wait for their disk. Disks that were opened for them stay open.
  std::vector<nbd::Released> end();
  /// Behind end(). May wait for the server.
  void close_disks() { opened_.clear(); }

 private:
  struct Waiting {
    // NOLINTNEXTLINE(google-explicit-constructor): a client waits until it has its disk
    Waiting(nbd::Released left) : client{std::move(left)} {}
    nbd::Released client;
    nbd::Lease disk;
  };
  using Disks = std::map<std::string, std::vector<Waiting>>;

  void run(const ClientConfig& config, nbd::Exports& exports, nbd::Front& front);
  bool open_all(const std::string& name, std::vector<Waiting>& clients, nbd::Exports& exports,
                bool last);
  bool claim(std::vector<Waiting>& clients);
  static void disconnect(std::vector<Waiting>& clients, const std::string& why,
                         const std::function<bool(const Waiting&)>& whom);
  static void disconnect_alike(std::vector<Waiting>& clients, Waiting& one, const std::string& why);
  Interrupt until_over();
  static void bring_up_to_date(std::vector<Waiting>& clients);
  Disks::iterator serve(Disks::iterator disk, nbd::Front& front);

  Disks waiting_;                   ///< its thread's, while that runs
  std::vector<nbd::Lease> opened_;  ///< of those who were left to the next start
  std::vector<std::string> names_;  ///< of stored descriptors
  std::atomic<bool> over_{false};
  std::atomic<bool> settled_{true};
  std::thread thread_;
};

}  // namespace rnbd
