// SPDX-License-Identifier: BSD-3-Clause
// Events of a device and its ports, and of queue pairs beyond the reach of their completions.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "rdma/log.hpp"

namespace rtrs::verbs {

/// The asynchronous events of a device: one queue for all that this process has open there, which
/// grows in the kernel until somebody reads it. One of the queue pairs has its descriptor among
/// those that it is watched by, reads for all, and wakes those concerned. When it goes, another one
/// takes over. They do not all have it, because epoll(7) lets a descriptor wake some 100 others.
///
/// Must be gone before the last connection manager id of its device, which may close it.
///
/// Threads: any.
/// Source:  ibv_get_async_event(3).
class AsyncEvents {
 public:
  /// A queue pair that gets its events.
  struct Subject {
    rdma_cm_id* id = nullptr;       ///< with the queue pair
    ibv_cq* completions = nullptr;  ///< of that queue pair alone
    int events = -1;                ///< an epoll descriptor, which becomes ready with the trouble
    /// The reason why the device says that it is of no use any more.
    std::atomic<const char*>* trouble = nullptr;
  };

  /// The events of a device, shared by all callers.
  static std::shared_ptr<AsyncEvents> of(ibv_context* device);
  ~AsyncEvents() = default;
  AsyncEvents(const AsyncEvents&) = delete;
  AsyncEvents& operator=(const AsyncEvents&) = delete;

  /// From here on the descriptor may be ready among `subject.events`: read() is called then.
  void add(const Subject& subject);
  /// Before the queue pair is destroyed, which waits for threads in the middle of an event.
  void remove(const ibv_qp* queue_pair);

  /// Adds a log for events of the device as a whole; of several only one is told. `owner` is a name
  /// for forget_log().
  void add_log(const void* owner, Log log);
  void forget_log(const void* owner);

  int descriptor() const { return device_->async_fd; }
  /// Takes and acknowledges all that there is, without blocking.
  void read();

 private:
  struct Entry {
    Subject subject;
    int signal = -1;  ///< always ready, where there is trouble
  };

  explicit AsyncEvents(ibv_context* device) : device_{device} {}
  void find_reader();
  void handle(const ibv_async_event& event);
  void handle_queue_pair(const ibv_async_event& event);
  void handle_completions(const ibv_cq* completions);
  void handle_device(const ibv_async_event& event);
  static void give_up(Entry& entry, const char* why);
  void give_up_all(const char* why);
  void say(LogLevel level, const std::string& text) const;

  ibv_context* const device_;
  std::mutex mutex_;
  std::map<const ibv_qp*, Entry> subjects_;  ///< guarded by mutex_
  const ibv_qp* reader_ = nullptr;           ///< guarded by mutex_
  std::map<const void*, Log> logs_;          ///< guarded by mutex_
};

}  // namespace rtrs::verbs
