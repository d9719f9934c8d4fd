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
#include <tl/expected.hpp>

#include "bridge/kernel/attachment.hpp"
#include "bridge/kernel/handover.hpp"
#include "bridge/kernel/identity.hpp"
#include "bridge/kernel/kernel_disk.hpp"
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
  std::chrono::milliseconds retry{900};
  std::string server;                    ///< distinguishes disks without a UUID
  std::function<bool()> all_paths_work;  ///< true if no request waits for a path
  rtrs::Log log;
};

/// Puts an export on /dev/nbdN. It takes over the device of a dead bridge: the kernel then repeats
/// unanswered requests. If the state of a predecessor's socket is doubtful, the kernel gets a new
/// one.
///
/// Errors:  as KernelDisk; EBUSY: the device is in use; and those of Netlink and Exports.
/// Threads: as KernelDisk. The front's workers serve the requests.
class Face final : public KernelDisk {
 public:
  Face(nbd::Exports& exports, nbd::Front& front, FaceOptions options,
       const std::optional<Kept>& kept = {});
  Face(const Face&) = delete;
  Face& operator=(const Face&) = delete;

  tl::expected<void, rtrs::Failure> attempt(std::chrono::milliseconds patience) override;
  bool waits_for_server() const override { return waits_for_server_; }
  News look(bool ask) override;
  void grow() override;
  void interrupt() override;
  void leave() override;
  void begin_hand_over() override;
  std::optional<Kept> end_hand_over(std::chrono::steady_clock::time_point until) override;
  std::string device() const override;

 private:
  // The server's side.
  tl::expected<nbd::Lease, rtrs::Failure> open_device();
  bool fits(const nbd::Lease& device, const Mapped& mapped) const;
  void set_identity(const Disk& device);
  void observe();

  // The kernel's side.
  static std::string device_of(const Mapped& mapped);
  std::optional<Mapped> find_by_name() const;
  tl::expected<void, rtrs::Failure> map();
  tl::expected<void, rtrs::Failure> join();
  Event what_is_there();
  rtrs::Failure another_disk() const;
  tl::expected<bool, rtrs::Failure> offer(const Row& row, nbd::Lease device);
  void set_queue();
  tl::expected<void, rtrs::Failure> claim_mapped();
  bool lock(unsigned index);
  tl::expected<bool, rtrs::Failure> resume();

  News follow_size();
  void wait_with_growth(std::uint64_t size);
  bool requests_flow();
  bool is_over() const;
  bool pause(std::chrono::milliseconds time);

  void say(rtrs::LogLevel level, const std::string& text) const;
  bool once(const std::string& text);

  nbd::Exports& exports_;
  nbd::Front& front_;
  const FaceOptions options_;
  const Sysfs sysfs_;
  /// The socket of a predecessor, and the state that belongs to it.
  struct Predecessor {
    rtrs::OwnedFd socket;
    std::optional<LeftBehind> left;
  };
  std::optional<Predecessor> predecessor_;
  std::optional<Netlink> netlink_;  ///< during attempt()
  Attachment attachment_;
  rtrs::OwnedFd lock_;  ///< Sysfs::lock()
  Identity identity_;
  bool mapped_ = false;                    ///< this bridge has given the device to the kernel
  bool waits_for_server_ = false;          ///< since the last attempt
  Message device_;                         ///< all values for messages to the kernel
  nbd::Lease observer_;                    ///< an extra user, to learn the size
  std::shared_ptr<nbd::Watched> watched_;  ///< of the connection with the kernel
  Flow seen_;                              ///< a second ago
  std::string said_;
  std::chrono::steady_clock::time_point until_{};  ///< the end of the present call
  std::optional<nbd::Front::Releasing> releasing_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> leaving_{false};  ///< changes with mutex_ held
};

}  // namespace rnbd::kernel
