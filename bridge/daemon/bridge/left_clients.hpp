// SPDX-License-Identifier: BSD-3-Clause
// NBD clients that a bridge leaves to its successor, which the service manager keeps meanwhile.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/nbd/exports.hpp"
#include "bridge/nbd/front.hpp"

namespace rnbd {

/// The record of clients for another process, without their sockets.
std::string record_of(const std::vector<nbd::Released>& clients);

/// The clients of a record; their sockets are -1. Parts that this version does not know are passed
/// over, unless they must be understood.
///
/// Errors: a sentence, for a record that is damaged or of another version.
tl::expected<std::vector<nbd::Released>, std::string> clients_of(std::span<const std::byte> record);

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

  bool empty() const { return waiting_.empty(); }
  /// Has the front serve them, on a thread of its own, because the server may have to be awaited,
  /// for no-path-timeout. Those whose disk is not what it was are disconnected. The front's door is
  /// opened when each disk has been tried once. The arguments must outlive end().
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
  static void disconnect(std::vector<Waiting>& clients, const std::string& why,
                         const std::function<bool(const Waiting&)>& whom);
  static void bring_up_to_date(std::vector<Waiting>& clients);
  Disks::iterator serve(Disks::iterator disk, nbd::Front& front);

  Disks waiting_;                   ///< its thread's, while that runs
  std::vector<nbd::Lease> opened_;  ///< of those who were left to the next start
  std::vector<std::string> names_;  ///< of stored descriptors
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace rnbd
