// SPDX-License-Identifier: BSD-3-Clause
// The disks of the kernel that one bridge serves: each in a state of its own, and none in another
// one's way.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bridge/kernel/kernel_disk.hpp"
#include "bridge/nbd/call_pool.hpp"
#include "rdma/log.hpp"

namespace rnbd::kernel {

enum class DiskState : std::uint8_t {
  connecting,  ///< the first attempt runs, or is about to
  waiting,     ///< an attempt has failed, and the next one comes by itself
  serving,
  lost,      ///< it was served, and the next attempt is about to come
  refused,   ///< no attempt can succeed before somebody changes something
  unmapped,  ///< another program has disconnected it
  leaving,   ///< it is being taken away
};

/// "connecting", "waiting" ...
const char* name_of(DiskState state);

struct DisksOptions {
  /// How long an attempt waits for a server without a path.
  std::chrono::milliseconds patience{10'000};
  /// The same for a server with a path, whose export is missing. Short, since other disks may wait
  /// for the thread of the attempt.
  std::chrono::milliseconds patience_on_path{2'000};
  std::function<bool()> has_path = [] { return true; };
  std::function<void()> on_unmapped = [] {};  ///< by another program
  std::chrono::milliseconds look_every{1000};
  std::chrono::milliseconds first_pause{1000};  ///< after a failure; each is twice as long
  std::chrono::milliseconds last_pause{8000};
  rtrs::Log log = {};
};

struct DiskStatus {
  std::string name;
  std::string exported;  ///< the name of its export
  DiskState state = DiskState::connecting;
  std::string device = {};   ///< "/dev/nbd0"; "": not yet
  std::string trouble = {};  ///< why it is not served
  int error = 0;             ///< errno of the trouble
  bool recovers = false;     ///< the kernel has it, and only its server is missing
};

/// Keeps the disks served. Looks at all of them from one thread, every second, and asks the servers
/// of 32 of them for the size. Attempts and growth run on threads that come when they are needed,
/// one at a time for each disk.
///
/// Threads: any; stop() and what follows it one at a time.
class Disks {
 public:
  explicit Disks(DisksOptions options);
  ~Disks();
  Disks(const Disks&) = delete;
  Disks& operator=(const Disks&) = delete;

  /// Begins to serve a disk. One of this name that waits, is refused or is unmapped makes room.
  /// False: there is one that is served or being tried.
  bool add(const std::string& name, const std::string& exported, std::shared_ptr<KernelDisk> disk);
  /// Notes a disk that cannot be tried.
  void refuse(const std::string& name, const std::string& exported, const std::string& why);
  /// Begins to take a disk away, after which it is gone from the list. False: there is none of this
  /// name.
  bool remove(const std::string& name);
  std::vector<DiskStatus> status() const;
  /// Returns when each disk has been tried, or `over` says so, which is asked now and then.
  void await_attempts(const std::function<bool()>& over) const;

  /// Ends attempts, and waits for calls under way. Nothing is begun after it.
  void stop(std::chrono::steady_clock::time_point until);
  struct Left {
    std::string name;
    std::optional<Kept> kept;  ///< none: the successor must bring a new socket
  };
  /// Hands over all that are served, at the same time. After stop().
  std::vector<Left> hand_over(std::chrono::steady_clock::time_point until);
  /// Takes away all of them. After stop().
  void leave(std::chrono::steady_clock::time_point until);

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  EntryPtr find(const std::string& name) const;
  void put(EntryPtr entry);
  void run();
  void look_at_all(Lock& lock);
  void begin_due(Clock::time_point now);
  void begin(const EntryPtr& entry, void (Disks::*call)(const EntryPtr& entry));
  void attempt(const EntryPtr& entry);
  void grow(const EntryPtr& entry);
  void leave_one(const EntryPtr& entry);
  void settle(const EntryPtr& entry);
  void note_failure(Entry& entry, const rtrs::Failure& why);
  void await_calls(Lock& lock, Clock::time_point until);
  void say(rtrs::LogLevel level, const std::string& name, const std::string& text) const;

  const DisksOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<EntryPtr> entries_;  ///< guarded by mutex_, as the next four
  Clock::time_point next_look_{};
  std::size_t next_asked_ = 0;  ///< place in `entries_`
  std::size_t calls_ = 0;       ///< under way
  bool over_ = false;
  nbd::CallPool pool_;  ///< after what its calls use
  std::thread thread_;
};

}  // namespace rnbd::kernel
