// SPDX-License-Identifier: BSD-3-Clause
// An export as a disk of the kernel, /dev/nbdN: put there, kept there, and taken away.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tl/expected.hpp>

#include "bridge/kernel/attachment.hpp"
#include "bridge/kernel/identity.hpp"
#include "bridge/kernel/netlink.hpp"
#include "bridge/kernel/sysfs.hpp"
#include "bridge/nbd/front.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::kernel {

struct FaceOptions {
  std::optional<unsigned> index;  ///< of /dev/nbdN; none: the first that is free
  std::string name;               ///< of the mapping
  std::chrono::seconds dead_timeout{3600};
  /// After so long, and up to a second more, the kernel sends requests again whose bridge has died.
  std::chrono::milliseconds retry{1500};
  std::string server;                    ///< tells disks apart that have no UUID
  std::function<bool()> all_paths_work;  ///< no request waits for a path
  rtrs::Log log;
};

/// A bridge's legacy to its successor: two descriptors that the service manager keeps.
struct Kept {
  int socket = -1;  ///< whose other end the kernel has
  int state = -1;   ///< a file in memory
};

/// A device whose bridge has died is taken over: the kernel sends what was not answered again.
///
/// Errors:  failures say what to do. ESTALE: the kernel has another disk under this name; EBUSY: a
///          device is in use; what Netlink and Exports say.
/// Threads: map() and leave() one at a time; the rest any. Requests are served by the front's
///          workers.
class Face {
 public:
  Face(nbd::Exports& exports, nbd::Front& front, FaceOptions options);
  ~Face();
  Face(const Face&) = delete;
  Face& operator=(const Face&) = delete;

  /// Returns when the device is there with its size. Takes over what a predecessor has left; if
  /// there is any doubt about that, the kernel is given another socket. Waits without limit for the
  /// server when the kernel has the device already.
  tl::expected<void, rtrs::Failure> map(const std::optional<Kept>& kept = {});
  /// Keeps it there, and its size up to date; `on_unmapped` is called when somebody else has taken
  /// it away. After map().
  void watch(std::function<void()> on_unmapped);
  /// Takes it away: requests that wait end with EIO.
  void leave();
  /// Leaves it to a successor, for which the kernel's requests wait. None: some do not end in time,
  /// and the successor has to bring a socket.
  std::optional<Kept> hand_over(std::chrono::milliseconds patience);

  /// `/dev/nbd0`, once it is mapped.
  std::string device() const;

 private:
  // The server's side.
  tl::expected<nbd::Lease, rtrs::Failure> open_device();
  bool fits(const nbd::Lease& device, const Mapped& mapped) const;
  void set_identity(const Disk& device);
  tl::expected<void, rtrs::Failure> observe();

  // The kernel's side.
  static std::string device_of(const Mapped& mapped);
  std::optional<Mapped> find_by_name() const;
  tl::expected<void, rtrs::Failure> join();
  Event what_is_there();
  rtrs::Failure another_disk() const;
  tl::expected<bool, rtrs::Failure> offer(const Row& row, nbd::Lease device);
  void set_queue();
  tl::expected<void, rtrs::Failure> claim_mapped();
  bool lock(unsigned index);
  bool resume(const Kept& kept);
  void end_thread();

  // The thread.
  void run();
  void rejoin();
  void follow_size();
  bool requests_flow();
  bool pause(std::chrono::milliseconds time);

  void say(rtrs::LogLevel level, const std::string& text) const;
  bool once(const std::string& text);

  nbd::Exports& exports_;
  nbd::Front& front_;
  const FaceOptions options_;
  const Sysfs sysfs_;
  std::optional<Netlink> netlink_;
  Attachment attachment_;
  rtrs::OwnedFd lock_;  ///< Sysfs::lock()
  Identity identity_;
  bool mapped_ = false;                    ///< the kernel has had the device from us
  Message device_;                         ///< all that the kernel may be told
  nbd::Lease observer_;                    ///< learns the size
  std::shared_ptr<nbd::Watched> watched_;  ///< of the connection with the kernel
  Flow seen_;                              ///< a second ago
  std::string said_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> leaving_{false};  ///< changes with mutex_ held
  std::function<void()> on_unmapped_;
  std::thread thread_;
};

}  // namespace rnbd::kernel
