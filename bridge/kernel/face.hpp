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
  /// The time until the kernel repeats requests of a dead bridge; it may take up to a second
  /// longer.
  std::chrono::milliseconds retry{1500};
  std::string server;                    ///< distinguishes disks without a UUID
  std::function<bool()> all_paths_work;  ///< true if no request waits for a path
  rtrs::Log log;
};

/// The descriptors that a bridge leaves to its successor. The service manager keeps them.
struct Kept {
  int socket = -1;  ///< connected to the kernel
  int state = -1;   ///< a file in memory
};

/// Puts an export on /dev/nbdN. It takes over the device of a dead bridge: the kernel then repeats
/// unanswered requests.
///
/// Errors:  sentences with the remedy. ESTALE: the kernel has another disk under this name; EBUSY:
///          the device is in use; and those of Netlink and Exports.
/// Threads: map() and leave() one at a time; the rest any. The front's workers serve the requests.
class Face {
 public:
  Face(nbd::Exports& exports, nbd::Front& front, FaceOptions options);
  ~Face();
  Face(const Face&) = delete;
  Face& operator=(const Face&) = delete;

  /// Returns when the device is ready and has its size. Takes over the socket of a predecessor; if
  /// its state is doubtful, the kernel gets a new socket. If the kernel has the device already,
  /// waits for the server without limit.
  tl::expected<void, rtrs::Failure> map(const std::optional<Kept>& kept = {});
  /// Keeps the device attached, and its size up to date. Calls `on_unmapped` when another program
  /// has disconnected it. Call it after map().
  void watch(std::function<void()> on_unmapped);
  /// Disconnects the device. Waiting requests end with EIO.
  void leave();
  /// Hands the device over to a successor, for which the kernel's requests wait. None: some
  /// requests do not end in time, and the successor must bring a new socket.
  std::optional<Kept> hand_over(std::chrono::milliseconds patience);

  /// `/dev/nbd0`, after map().
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
  bool mapped_ = false;                    ///< this bridge has given the device to the kernel
  Message device_;                         ///< all values for messages to the kernel
  nbd::Lease observer_;                    ///< an extra user, to learn the size
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
