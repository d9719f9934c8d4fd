// SPDX-License-Identifier: BSD-3-Clause
// All lanes of a client's session, and the memory that their connections know.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/core/client/machine.hpp"
#include "rdma/core/unresolved.hpp"
#include "rdma/failure.hpp"
#include "rdma/transport/client/lane_driver.hpp"
#include "rdma/transport/client/notices.hpp"
#include "rdma/transport/client/path_drivers.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/reactor.hpp"

namespace rtrs {

/// The owner of a session's lanes.
class ClientLanesOwner : public LaneDriverOwner {
 public:
  /// On the background thread: an unresolved write has ended, and requests have gone on.
  virtual void on_resolved() = 0;

 protected:
  ~ClientLanesOwner() = default;
};

/// The lanes of I/O, which callers' threads drive, and the control lane, which the background
/// thread drives, with the scopes of their unresolved writes. Performs a machine's actions on them.
///
/// Threads: the client's background thread, but io() and count() any once create() is over.
class ClientLanes {
 public:
  /// All must outlive this object.
  ClientLanes(Reactor& reactor, const ClientOptions& options, ClientNotices& notices,
              PathDrivers& paths, ClientLanesOwner& owner);

  /// `slots`: the permits of the control lane, and of each lane of I/O.
  void create(const std::vector<std::uint16_t>& slots);
  unsigned count() const { return static_cast<unsigned>(lanes_.size()); }  ///< of I/O
  LaneDriver& io(std::size_t lane) { return *lanes_[lane]; }
  ClientLane& control() { return *control_; }
  /// True: the control lane has permits of its own. Otherwise the server granted one only, and the
  /// lanes of I/O do without it.
  bool has_control() const { return control_->permits().count() > 0; }

  void for_each(const std::function<void(ClientLane&)>& function);
  void for_each_connection(const std::function<void(Connection&)>& function);
  /// Sends what was submitted on the control lane.
  void flush_control() { paths_.flush(); }

  // Paths
  /// `prepare` is called with each connection that will carry I/O.
  void attach(PathLife life, PathDriver& driver, const std::function<void(Connection&)>& prepare);
  void detach(unsigned path);
  void allow(unsigned path, bool accessible);
  /// At each heartbeat of a path.
  struct Signs {
    bool heard = false;    ///< something arrived on a connection of I/O since the last time
    bool all_live = true;  ///< see ClientLane::probe()
  };
  Signs look_after(unsigned path, unsigned misses_max);
  ClientEvent::Traffic traffic(unsigned path);
  /// At each look at the races of all lanes of I/O. None: nothing has changed.
  std::optional<Raced> look_at_races();
  /// False: answers are due, and the looks must go on. Else LaneDriverOwner::on_busy() says when.
  bool end_looks();
  /// The server may still carry out requests that came over the path, or their end is known only
  /// there.
  bool bound(unsigned path);
  std::optional<std::uint16_t> lend_permit(unsigned path);

  // Requests that wait
  /// Performs use, renew, put_off, fail_waiting and forget; other kinds are not for all lanes.
  void perform(const ClientAction& action);
  /// A server without the extension may still carry out requests of a path that it has not let
  /// back. Nothing newer may be written meanwhile, and nobody waits for that for ever.
  void fail_writes(unsigned path);
  /// Paths come, but none carries certain requests. The result: those that had some of them in
  /// flight. None: no request has failed.
  std::optional<PathMask> fail_overdue();
  /// A CLOSE with an unknown end, say, holds back OPENs.
  bool opens_unresolved() const { return control_unresolved_.writes(); }
  bool opens_wait() const { return control_->holds_back(); }
  /// A write waits for an older one of its owner's.
  bool writes_wait();

  void log_statistics(unsigned path) const;
  void shut_down();
  bool is_shut_down() const { return shut_down_; }

 private:
  void go_on_after(Unresolved& scope);
  int error_without_path(const ClientLane& lane) const;
  int error_without_path() const;

  Reactor& reactor_;
  const ClientOptions& options_;
  ClientNotices& notices_;
  PathDrivers& paths_;
  ClientLanesOwner& owner_;
  Unresolved unresolved_;
  Unresolved control_unresolved_;
  std::unique_ptr<ClientLane> control_;
  std::vector<std::unique_ptr<LaneDriver>> lanes_;
  PathMask silent_ = 0;  ///< on some lane, at the last look
  bool shut_down_ = false;
};

/// Registers memory of callers with every connection that carries I/O, those that will come
/// included.
///
/// Threads: the client's background thread.
class RegisteredMemory {
 public:
  /// `lanes` must outlive this object.
  explicit RegisteredMemory(ClientLanes& lanes) : lanes_{lanes} {}

  /// Errors: EEXIST; those of the devices: then none knows it.
  tl::expected<void, Failure> add(MutableBytes memory);
  /// Errors: ENOENT.
  tl::expected<void, Failure> remove(MutableBytes memory);
  /// A connection has come. The result: why its device did not take some of it; that is copied.
  std::vector<Failure> introduce_to(Connection& connection) const;

 private:
  void forget(MutableBytes memory);

  ClientLanes& lanes_;
  std::vector<MutableBytes> memories_;
};

}  // namespace rtrs
