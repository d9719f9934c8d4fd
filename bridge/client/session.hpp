// A session with a block server: opens its devices and shares them among all who ask.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/geometry.hpp"
#include "bridge/client/write_gate.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"

namespace rnbd {

using rtrs::Failure;
using rtrs::Interrupt;

class RemoteDevice;

/// An errno in words, the same in every language setting.
///
/// Threads: any; takes no lock.
const char* describe_error(int error);

/// How to open a device.
struct OpenOptions {
  wire::AccessMode access = wire::AccessMode::read_write;
  /// The server has refused to open it for writing. Only servers with the extension say so
  /// themselves.
  bool export_read_only = false;
  GeometryOptions geometry{};
};

/// An rtrs session that speaks RNBD.
///
/// A session whose path died stays dead: everything answers EIO, and the owner makes a new one.
///
/// Threads: any.
class Session : public std::enable_shared_from_this<Session> {
 public:
  /// Connects and agrees on the protocol. No thread exists before this call.
  ///
  /// Errors: as rtrs::Client::connect(); EPROTO (the server does not speak RNBD).
  static tl::expected<std::shared_ptr<Session>, Failure> connect(rtrs::ClientOptions options,
                                                                 const Interrupt& interrupt);
  /// The same over a client that is connected already.
  static tl::expected<std::shared_ptr<Session>, Failure> start(std::unique_ptr<rtrs::Client> client,
                                                               const Interrupt& interrupt);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool alive() const { return client_->alive(); }
  std::string failure() const { return client_->failure(); }
  const rtrs::SessionLimits& limits() const { return client_->limits(); }
  /// True when the server has the messages that only rnbdkit peers know.
  bool has_extensions() const;

  /// Opens a device. One that this session has open already is shared; it is closed when the last
  /// user has left, unless requests on it were given up: a server that is stuck with them could not
  /// close it, and the next one who asks may have it at once. If one of them was a change, that one
  /// waits until the server has closed it, which it does when the change has ended. Asking for `ro`
  /// shares a writable mapping too.
  ///
  /// Errors: EBUSY (open here in a mode that does not allow the asked one), EROFS (open here, and
  ///         known to be read-only), EINVAL (name), EINTR, EPROTO (nonsense from the server), or
  ///         what the server answered.
  tl::expected<std::unique_ptr<RemoteDevice>, Failure> open(const std::string& device,
                                                            const OpenOptions& options,
                                                            const Interrupt& interrupt);

  /// Names of the server's exports.
  ///
  /// Errors: EOPNOTSUPP (a server without the extension), EOVERFLOW (more than 100,000 names),
  /// EINTR,
  ///         EPROTO, EIO.
  tl::expected<std::vector<wire::ExportName>, Failure> list_exports(const Interrupt& interrupt);

  /// The program ends: devices are no longer closed one by one, which the end of the session does.
  void leave() { leaving_ = true; }

 private:
  friend class RemoteDevice;

  /// An open device and all who use it.
  struct Mapping {
    enum class State { opening, open, closing };

    State state = State::opening;  ///< guarded by Session::mutex_
    unsigned users = 1;            ///< guarded by Session::mutex_; may be 0 after requests were
                                   ///< abandoned
    std::string device;
    OpenOptions options;
    DeviceGeometry geometry;  ///< constant once open
    WriteGate gate;
    /// Requests were given up that the server may still be carrying out.
    std::atomic<bool> abandoned{false};
    /// One of them was a change, which may still land on top of what later ones write.
    std::atomic<bool> change_abandoned{false};
    /// One of them was the write of a patch: nobody knows when it lands.
    std::atomic<bool> torn{false};
  };

  explicit Session(std::unique_ptr<rtrs::Client> client);
  int exchange_versions(const Interrupt& interrupt);
  tl::expected<void, Failure> finish_opening(Mapping& mapping, const Interrupt& interrupt);
  tl::expected<void, Failure> fetch_geometry(Mapping& mapping, const Interrupt& interrupt);
  tl::expected<std::shared_ptr<Mapping>, Failure> join(const std::string& device,
                                                       const OpenOptions& options,
                                                       const Interrupt& interrupt, bool& created);
  int close_at_server(std::uint32_t device_id, const Interrupt& interrupt);
  void close_in_passing(std::uint32_t device_id);
  void release(const std::shared_ptr<Mapping>& mapping);
  void forget(const Mapping& mapping);
  void settle(Mapping& mapping);

  std::unique_ptr<rtrs::Client> client_;
  std::atomic<bool> leaving_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Mapping>> mappings_;  ///< guarded by mutex_
};

}  // namespace rnbd
