// SPDX-License-Identifier: BSD-3-Clause
// Interfaces for what a server does beyond plain block I/O. Each annex has a folder of its own, and
// a line in the server's table of annexes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rtrs {
class Reactor;
class Regions;
class ServerSession;
struct ServerRequest;
}  // namespace rtrs

namespace rnbd {

struct Device;
struct SessionParts;
class Services;

/// The part of an annex in one open device. The device owns it, and drops it before its lease.
///
/// Threads: the reactor of the session.
class DeviceAnnex {
 public:
  virtual ~DeviceAnnex() = default;
  /// True: its user may write, by a right that is no reservation.
  virtual bool writes() const { return false; }
  /// The errno by which it refuses all requests now; 0: it does not.
  virtual int refuses() const { return 0; }
  /// The bytes of a storage with so many that its user's requests reach: the last one may end
  /// there, within a block.
  virtual std::uint64_t reach(std::uint64_t size) const { return size; }
  /// Ends what must be over before others may write. True: `then` is called later, on the reactor.
  /// False: nothing of the kind is there, and `then` is not called.
  virtual bool leave(const std::function<void()>& then) {
    (void)then;
    return false;
  }
};

/// The part of an annex in one storage, under all its names.
///
/// Threads: any, except for attach().
class StorageAnnex {
 public:
  virtual ~StorageAnnex() = default;
  /// The reason for people why clients without some feature may not use it; "": they may.
  virtual std::string closed_to(std::uint64_t features, std::string_view name) const = 0;
  /// The bytes that clients are told of a storage with so many: an annex may keep to the first
  /// ones.
  virtual std::uint64_t told_size(std::uint64_t size) const { return size; }
  /// Puts a device of the storage under the rules of the annex, if there are any by now.
  ///
  /// Threads: the reactor of the device's session.
  virtual void attach(Device& device, const Services& services, rtrs::Reactor* reactor) = 0;
};

/// The part of an annex in one session. A request under way keeps the session.
///
/// Threads: the reactor of the session.
class SessionAnnex {
 public:
  virtual ~SessionAnnex() = default;
  /// True: the message is the annex's, which answers the request once.
  virtual bool on_request(rtrs::ServerRequest& request, wire::MessageType type) = 0;
  /// No access over this path to exposed memory is possible any more.
  virtual void on_memory_path_down(const wire::Uuid& path) { (void)path; }
};

/// An annex of a server, which outlives its storages and sessions.
///
/// Threads: any.
class ServerAnnex {
 public:
  virtual ~ServerAnnex() = default;
  virtual std::unique_ptr<SessionAnnex> open_session(const SessionParts& session) = 0;
  /// Null: the annex has no part in it. `life` differs in each life of the server. May block.
  virtual std::shared_ptr<StorageAnnex> open_storage(const wire::Uuid& key, std::uint64_t life) {
    (void)key, (void)life;
    return nullptr;
  }
  /// Threads: the reactor of the session.
  virtual void on_memory_path_up(rtrs::ServerSession& session, const wire::Uuid& path,
                                 rtrs::Regions& regions, const Services& services) {
    (void)session, (void)path, (void)regions, (void)services;
  }
  virtual void on_memory_path_down(rtrs::ServerSession& session, const wire::Uuid& path) {
    (void)session, (void)path;
  }
};

using ServerAnnexes = std::vector<std::shared_ptr<ServerAnnex>>;

/// The annex's part of this type; null: there is none.
template <class Part, class Parts>
Part* part_of(const Parts& parts) {
  for (const auto& part : parts)
    if (auto* const found = dynamic_cast<Part*>(part.get())) return found;
  return nullptr;
}

}  // namespace rnbd
