// SPDX-License-Identifier: BSD-3-Clause
// A session with a block server. It opens devices and shares them among all callers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/client/changes_under_way.hpp"
#include "bridge/client/device_table.hpp"
#include "bridge/client/disk.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/questions.hpp"
#include "bridge/client/server_directory.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// Tells them all. A listener that was removed is not running any more.
///
/// Threads: any.
class RecallListeners {
 public:
  /// Calls `listener`, which must not block, with each recall; null ends that. `owner` tells
  /// listeners apart.
  void listen(const void* owner, std::function<void()> listener) {
    const std::lock_guard lock{mutex_};
    if (listener)
      listeners_[owner] = std::move(listener);
    else
      listeners_.erase(owner);
  }

  /// On the client's thread.
  void recall() {
    const std::lock_guard lock{mutex_};
    for (const auto& [owner, listener] : listeners_) listener();
  }

 private:
  std::mutex mutex_;                                        ///< held while listeners run
  std::map<const void*, std::function<void()>> listeners_;  ///< guarded by mutex_
};

using rtrs::Failure;
using rtrs::Interrupt;

class RemoteDevice;

/// A device that a session has open.
struct DeviceStatus {
  std::string name;
  std::uint64_t size = 0;  ///< bytes
  bool read_only = false;
  std::string uuid{};  ///< "" = its server does not tell
  unsigned users = 0;
  std::string trouble{};  ///< the reason why its users get EIO until they open it anew; "" = none
  bool shrunk = false;    ///< requests behind the end of the server's storage fail
};

/// An errno in English words, in every language setting.
///
/// Threads: any; takes no lock.
const char* describe_error(int error);

/// " (TEXT)" behind a sentence, or "" for no text.
inline std::string in_brackets(const std::string& text) {
  return text.empty() ? "" : " (" + text + ")";
}

/// The reason why no path has a connection; empty while one has.
std::string trouble_with(const std::vector<rtrs::PathStatus>& paths);

/// The failure (EPROTO) for an invalid answer of the server; `what` names the answer.
Failure nonsense_from_server(const std::string& what);

/// An RTRS session that carries RNBD.
///
/// When the server has forgotten the session, because it was restarted, the open devices are opened
/// again before any request goes on. They must be the same as before. A device that was replaced is
/// lost. So is one that the server refuses for long while it opens others. The users of a lost
/// device get EIO for all requests, and a new OPEN gets the present device. With a server without
/// kFeatureExactlyOnce, the loss of a device ends the session: every call returns EIO. The owner
/// may make a new session.
///
/// Threads: any.
class Session final : public rtrs::RecoveryHandler,
                      public LaneSource,
                      public std::enable_shared_from_this<Session> {
 public:
  /// Connects and negotiates the protocol. No thread exists before this call.
  ///
  /// Errors: as rtrs::Client::connect(); EPROTO (the server does not speak RNBD).
  static tl::expected<std::shared_ptr<Session>, Failure> connect(rtrs::ClientOptions options,
                                                                 const Interrupt& interrupt);
  /// The same with a client that `make` connects. The session becomes its recovery handler.
  using ClientMaker = std::function<tl::expected<std::unique_ptr<rtrs::Client>, Failure>(
      rtrs::RecoveryHandler& recovery)>;
  static tl::expected<std::shared_ptr<Session>, Failure> start(const ClientMaker& make,
                                                               rtrs::Log log,
                                                               const Interrupt& interrupt);
  ~Session() override;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool alive() const { return client_->alive(); }
  std::string failure() const;
  /// False while no path to the server works, so that requests wait or fail.
  bool has_path() const { return trouble_with(client_->paths()).empty(); }
  /// True when the server knows the extension messages of rnbdkit.
  bool has_extensions() const;

  /// Opens a device. If this session has it open already, its users share it, and its size is read
  /// again. Access mode ro shares a device with writers, too.
  ///
  /// The device is closed after its last user. With cancelled reads in flight it is closed when
  /// they have ended, because a server that is stuck with them could not close it. Until then, a
  /// new user can share it at once. After a cancelled write, a new user waits until the server has
  /// closed the device, which it does when the write has ended.
  ///
  /// Errors: EBUSY (open here in a mode that excludes the requested one); EROFS (open here, and
  ///         known to be read-only); ESTALE (not the disk with OpenOptions::uuid); EINVAL (name);
  ///         EINTR; EIO (the session is over); EPROTO (nonsense from the server); or the server's
  ///         own.
  tl::expected<std::unique_ptr<RemoteDevice>, Failure> open(const std::string& device,
                                                            const OpenOptions& options,
                                                            const Interrupt& interrupt);

  /// Asks the server about all that it has, with the features of the present session.
  ServerDirectory directory() { return {*client_, era().limits}; }
  /// The listeners for a server that wants mapped blocks back.
  RecallListeners& recalls() { return recalls_; }

  /// The devices that users have open, also lost ones.
  std::vector<DeviceStatus> devices() const;
  /// The client, for callers that manage its paths.
  rtrs::Client& client() { return *client_; }

  /// The I/O lanes of the client, for event loops; see rtrs::Client.
  unsigned lanes() const override { return client_->lanes(); }
  std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) override {
    return client_->take_lane(lane);
  }

  /// The program ends. From now on, users that leave close no devices, because the end of the
  /// session closes all.
  void leave() { leaving_ = true; }

  // Called by the client: recovery, when the server has forgotten the session, and background jobs.
  std::unique_ptr<rtrs::Operation> reopen(const rtrs::SessionLimits& limits) override;
  int reopened(rtrs::Operation& operation) override;
  void reopening_failed(rtrs::Operation& operation) override;
  std::unique_ptr<rtrs::Operation> background_job() override;
  void background_job_ended(rtrs::Operation& operation) override;
  void on_recall() override { recalls_.recall(); }

 private:
  friend class RemoteDevice;

  /// An open device and all its users. Session::mutex_ guards the base, except for `name`, which is
  /// constant.
  struct Mapping : ClientDevice {
    std::string claim_refusal;  ///< the last one in the log; guarded by Session::mutex_
    /// Event loops whose users wait for another user's CLAIM; guarded by Session::mutex_.
    std::vector<std::function<void()>> claim_waiters;
    ChangesUnderWay changes;
  };

  /// A device, as its users see it.
  struct Known {
    DeviceGeometry geometry;
    bool claimed = false;
    bool lost = false;
    Witness witness;                   ///< as told in the newest session
    std::uint64_t volatile_epoch = 0;  ///< see DeviceTable
  };

  explicit Session(rtrs::Log log);
  Era era() const;
  tl::expected<void, Failure> finish_opening(Mapping& mapping, const Interrupt& interrupt);
  tl::expected<void, Failure> fetch_geometry(Mapping& mapping, const Interrupt& interrupt);
  tl::expected<DeviceGeometry, Failure> ask_geometry(Mapping& mapping, const Interrupt& interrupt);
  tl::expected<DeviceGeometry, Failure> look_again(Mapping& mapping, const Interrupt& interrupt);
  Known known_of(const Mapping& mapping) const;
  /// The session may write to it, and so may a user that saw the content at `seen`.
  bool covers(const Mapping& mapping, const Witness& seen) const;
  int claim(Mapping& mapping, const Witness& seen, const Interrupt& interrupt);
  Disk::BegunClaim begin_claim(Mapping& mapping, const Witness& seen, std::function<void()> again,
                               std::uint64_t& asked_in);
  std::optional<int> end_claim(Mapping& mapping, const Witness& seen, std::uint64_t asked_in,
                               const DeviceAnswer& answer);
  int settle_claim(Mapping& mapping, const Witness& seen, const DeviceAnswer& answer,
                   const wire::WhoAnswer& reason);
  void claim_ended(Mapping& mapping, std::unique_lock<std::mutex>& lock);
  int refuse_claim(Mapping& mapping, int error, const wire::WhoAnswer& reason = {});
  Failure not_opened(const Mapping& mapping, int error, const wire::WhoAnswer& reason = {}) const;
  wire::WhoAnswer reason_for(int error, const std::string& device, const Interrupt& interrupt);
  tl::expected<std::shared_ptr<Mapping>, Failure> join(const std::string& device,
                                                       const OpenOptions& options,
                                                       const Interrupt& interrupt, bool& created);
  int ask_open(Mapping& mapping, rtrs::MutableBytes answer, const Interrupt& interrupt);
  int close_at_server(Mapping& mapping, const Interrupt& interrupt);
  int close_in_passing(Mapping& mapping);
  void release(const std::shared_ptr<Mapping>& mapping);
  void close_for_good(Mapping& mapping);
  void end_closing(ClientDevice& device, int error);
  std::vector<std::string> adopt(const ReopenOperation& reopen);
  int reject(const ReopenOperation& reopen);
  void say(const std::vector<std::string>& complaints) const;
  void say(rtrs::LogLevel level, const std::string& line) const;

  const rtrs::Log log_;
  std::atomic<bool> leaving_{false};
  RecallListeners recalls_;
  /// Not held during calls of the client, because the client's thread takes it.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  DeviceTable table_;                     ///< of Mappings; guarded by mutex_
  LostDevices lost_;                      ///< guarded by mutex_
  DeviceTable::Device background_job_;    ///< closed by the present job; guarded by mutex_
  std::string stale_;                     ///< the reason why the session ended; guarded by mutex_
  std::string last_refusal_;              ///< of a recovery, last logged; guarded by mutex_
  std::unique_ptr<rtrs::Client> client_;  ///< last: its thread calls reopen() until it is gone
};

}  // namespace rnbd
